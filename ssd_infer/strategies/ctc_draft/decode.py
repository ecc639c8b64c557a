"""Decode encoded utterances by any method; the one place that knows which method is which."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.families.speech.greedy import Row, finish
from ssd_infer.families.speech.result import GATE, PLAIN, Decoded, RowResult
from ssd_infer.strategies.ctc_draft.ctc import Draft, draft, posteriors
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.gates import two_gates
from ssd_infer.strategies.ctc_draft.lossless import verify_exactly
from ssd_infer.strategies.ctc_draft.references import rescore, substitute

FEWEST_TOKENS = 8


def token_limits(encoded: Any, most: int | None = None) -> list[int]:
    """Return how many tokens each row may have: one an encoder frame, as CTC could emit, and at most `most`."""
    limits = [max(FEWEST_TOKENS, length) for length in encoded.lengths.tolist()]
    return limits if most is None else [min(limit, most) for limit in limits]


@torch.inference_mode()
def decode(
    model: Any,
    encoded: Any,
    method: str | None,
    params: CTCDraftParams | None = None,
    max_new_tokens: int | None = None,
) -> Decoded:
    """Decode a batch of encoder outputs; `method` None is plain greedy decoding, else a name of `params.NAMES`.

    Raises RuntimeError for a model in training mode: dropout would make every comparison of tokens meaningless.
    """
    if model.training:
        raise RuntimeError("decoding needs model.eval(): with dropout active no two passes agree")
    limits = token_limits(encoded, max_new_tokens)
    out = Decoded([RowResult() for _ in limits])
    if method is None:
        _plain(model.decoder, encoded, limits, out)
        return out
    params = params or CTCDraftParams()
    table, drafts = _drafts(model, encoded, params, out)
    if method == "ctc_draft:ctc_only":
        for row, item, limit in zip(out.rows, drafts, limits, strict=True):
            row.tokens, row.route, row.kept = item.tokens[:limit], GATE, min(limit, len(item.tokens))
    elif method == "sasd":
        substitute(encoded, table, model.decoder, drafts, limits, out)
    elif method == "rescoring":
        rescore(encoded, table, model.decoder, model.config.blank_token_id, limits, out)
    elif params.accept == "greedy":
        verify_exactly(model.decoder, encoded, drafts, limits, params, out)
    else:
        two_gates(model.decoder, encoded, drafts, limits, params, out)
    return out


def special_ids(config: Any) -> list[int]:
    """Return the ids no transcript may hold, the blank excepted."""
    ids = {config.bos_token_id, config.eos_token_id, config.pad_token_id} - {config.blank_token_id, None}
    return sorted(ids)


def _plain(decoder: Any, encoded: Any, limits: list[int], out: Decoded) -> None:
    rows = [Row(index, limit, pending=list(decoder.prompt)) for index, limit in enumerate(limits)]
    with out.timed("fallback"):
        finish(decoder, decoder.start(encoded), rows, out.work)
    for row in rows:
        out.rows[row.index].tokens, out.rows[row.index].route = row.tokens, PLAIN


def draft_of(model: Any, encoded: Any, params: CTCDraftParams) -> list[Draft]:
    """Return every row's greedy CTC transcript."""
    return _draft(model, encoded, params)[1]


def _draft(model: Any, encoded: Any, params: CTCDraftParams) -> tuple[Tensor, list[Draft]]:
    """Return the CTC posteriors `(B, T, V)` and every row's transcript."""
    config = model.config
    table = posteriors(encoded.ctc_logits, special_ids(config), params.temperature_ctc)
    how = params.entropy_agg if params.accept == "relaxed" else None
    frames = params.entropy_frames
    return table, draft(table, encoded.lengths, config.blank_token_id, how, frames)


def _drafts(model: Any, encoded: Any, params: CTCDraftParams, out: Decoded) -> tuple[Tensor, list[Draft]]:
    """Return posteriors and transcripts, these at most `draft_max_tokens` long; note their length and entropy."""
    most = params.draft_max_tokens
    with out.timed("ctc"):
        table, drafts = _draft(model, encoded, params)
    for row, item in zip(out.rows, drafts, strict=True):
        if most is not None:
            del item.tokens[most:], item.frames[most:]
        row.drafted = len(item.tokens)
        row.entropy = item.entropy if params.accept == "relaxed" else None
    return table, drafts
