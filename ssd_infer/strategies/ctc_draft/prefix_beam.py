"""CTC prefix beam search (Hannun et al., arXiv 1408.2873): the n most probable transcripts, all alignments summed."""

from __future__ import annotations

import math
from collections import defaultdict

from torch import Tensor

Prefix = tuple[int, ...]
_SURE_BLANK = math.log(0.999)
"""Frames whose blank is surer than this change no ranking worth having."""


def prefix_beam(
    log_probabilities: Tensor, blank: int, width: int = 8, symbols: int = 8
) -> list[tuple[list[int], float]]:
    """Return up to `width` (tokens, ln P_CTC) of one utterance's `(T, V)`, best first; `symbols` are tried a frame."""
    beam: dict[Prefix, tuple[float, float]] = {(): (0.0, -math.inf)}
    values, ids = (part.tolist() for part in log_probabilities.topk(min(symbols, log_probabilities.shape[1])))
    blanks = log_probabilities[:, blank].tolist()
    for row, names, silent in zip(values, ids, blanks, strict=True):
        if silent > _SURE_BLANK:
            beam = {prefix: (_add(*both) + silent, -math.inf) for prefix, both in beam.items()}
            continue
        beam = _extend(beam, row, names, blank, silent)
        best = sorted(beam.items(), key=lambda item: -_add(*item[1]))[:width]
        beam = dict(best)
    ranked = sorted(((list(prefix), _add(*both)) for prefix, both in beam.items()), key=lambda item: -item[1])
    return ranked[:width]


def _extend(
    beam: dict[Prefix, tuple[float, float]], values: list[float], ids: list[int], blank: int, silent: float
) -> dict[Prefix, tuple[float, float]]:
    """Return all prefixes one frame later, each with ln P of ending in blank and of ending in its last token."""
    after: dict[Prefix, list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
    for prefix, (in_blank, in_token) in beam.items():
        both = _add(in_blank, in_token)
        entry = after[prefix]
        entry[0] = _add(entry[0], both + silent)
        for value, token in zip(values, ids, strict=True):
            if token == blank:
                continue
            if prefix and token == prefix[-1]:
                entry[1] = _add(entry[1], in_token + value)
                longer = after[(*prefix, token)]
                longer[1] = _add(longer[1], in_blank + value)
            else:
                longer = after[(*prefix, token)]
                longer[1] = _add(longer[1], both + value)
    return {prefix: (both[0], both[1]) for prefix, both in after.items() if max(both) > -math.inf}


def _add(first: float, second: float) -> float:
    """Return ln(e^first + e^second)."""
    high, low = (first, second) if first >= second else (second, first)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
