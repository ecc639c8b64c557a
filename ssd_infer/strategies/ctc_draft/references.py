"""Two published ways to use both heads that draft nothing, for comparison: attention rescoring and SASD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.families.speech.greedy import step
from ssd_infer.families.speech.result import VERIFY, Decoded
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.prefix_beam import prefix_beam

BEAM, CTC_WEIGHT = 8, 0.5
"""n-best of rescoring, and the weight of ln P_CTC beside the decoder's score (WeNet's usual decoding setting)."""
SURE, CANDIDATES, INTERPOLATION = 0.99, 10, 0.5
"""SASD: peak posterior that is left alone, decoder candidates elsewhere, weight of the CTC head among them."""


def rescore(encoded: Any, table: Tensor, decoder: Any, blank: int, limits: list[int], out: Decoded) -> None:
    """Choose among the CTC head's n-best by decoder and CTC score together (U2: arXiv 2012.05481).

    `table` `(B, T, V)` are CTC posteriors.
    """
    with out.timed("ctc"):
        lengths, logs = encoded.lengths.tolist(), table.log().cpu()
        found = [prefix_beam(logs[row, :length], blank, BEAM) for row, length in enumerate(lengths)]
    owners = [row for row, items in enumerate(found) for _ in items]
    tokens = [item[0][: limits[row]] for row, items in enumerate(found) for item in items]
    with out.timed("verify"):
        state = decoder.start(encoded.select(owners))
        prompt = list(decoder.prompt)
        logits = step(decoder, state, [prompt + row for row in tokens], out.work)
        out.work.verifies += 1
        scores = _scores(logits[:, len(prompt) - 1 :], tokens, decoder.eos)
    totals = [
        score + CTC_WEIGHT * ctc for score, ctc in zip(scores, (i[1] for f in found for i in f), strict=True)
    ]
    for row, result in enumerate(out.rows):
        places = [place for place, owner in enumerate(owners) if owner == row]
        result.tokens, result.route = tokens[max(places, key=totals.__getitem__)], VERIFY


def substitute(
    encoded: Any, table: Tensor, decoder: Any, drafts: list[Draft], limits: list[int], out: Decoded
) -> None:
    """Let the decoder replace the tokens the CTC head doubts, none inserted or removed (SASD, Interspeech 2026).

    Where the peak posterior is below `SURE`, the best of the decoder's `CANDIDATES` by interpolated log-probability.
    """
    tokens = [item.tokens[:limit] for item, limit in zip(drafts, limits, strict=True)]
    with out.timed("verify"):
        prompt = list(decoder.prompt)
        state = decoder.start(encoded)
        logits = step(decoder, state, [prompt + row for row in tokens], out.work)
        out.work.verifies += 1
        spoken = torch.log_softmax(logits[:, len(prompt) - 1 :].float(), dim=-1)
        for row, (result, item) in enumerate(zip(out.rows, drafts, strict=True)):
            ends = [*item.frames[1:], int(encoded.lengths[row])]
            result.tokens, result.route = [], VERIFY
            for place, token in enumerate(tokens[row]):
                heard = table[row, item.frames[place] : ends[place]]
                peak = heard[heard[:, token].argmax()]
                result.tokens.append(token if peak[token] >= SURE else _joint(spoken[row, place], peak))


def _joint(spoken: Tensor, heard: Tensor) -> int:
    """Return the decoder candidate with the best interpolated score; both `(V,)`, log and probability."""
    values, ids = spoken.topk(min(CANDIDATES, len(spoken)))
    mixed = (1 - INTERPOLATION) * values + INTERPOLATION * heard[ids].clamp_min(1e-10).log()
    return int(ids[mixed.argmax()])


def _scores(logits: Tensor, tokens: list[list[int]], eos: int) -> list[float]:
    """Return Σ_j ln p(y_j) + ln p(EOS) of each row; `logits` `(N, n, V)` begin at the first token."""
    width = max(map(len, tokens)) + 1
    wanted = torch.tensor([row + [eos] * (width - len(row)) for row in tokens], device=logits.device)
    logs = torch.log_softmax(logits[:, :width].float(), dim=-1).gather(2, wanted[:, :, None]).squeeze(2)
    ends = torch.tensor([len(row) for row in tokens], device=logits.device)
    beyond = torch.arange(width, device=logits.device) > ends[:, None]
    scores: list[float] = logs.masked_fill(beyond, 0.0).sum(dim=1).tolist()
    return scores
