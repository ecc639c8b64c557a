"""Accept a CTC transcript by two gates (arXiv 2603.11243): doubt of the CTC head, likelihood under the decoder.

Gate 1 passes what the head is sure of, and the decoder never runs. Gate 2 asks the decoder for the probability of every
draft token, and of the end, in one pass. A rejected transcript keeps its prefix up to the first doubtful token, with
the keys and values already computed; the decoder takes over there, and takes up what it says again of the rest of the
draft, verified token by token. Plausibility, not identity: not lossless.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.families.speech.greedy import Row, keep, step
from ssd_infer.families.speech.result import FALLBACK, GATE, VERIFY, Decoded
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.lossless import follow
from ssd_infer.strategies.ctc_draft.tails import Tail, Tails


def two_gates(
    decoder: Any, encoded: Any, drafts: list[Draft], limits: list[int], params: CTCDraftParams, out: Decoded
) -> None:
    """Decode the batch `encoded` into `out`, whose row i belongs to `drafts[i]`."""
    queue = []
    for index, (draft, limit) in enumerate(zip(drafts, limits, strict=True)):
        if passes_entropy(draft, params):
            out.rows[index].tokens, out.rows[index].route = draft.tokens[:limit], GATE
            out.rows[index].kept = len(out.rows[index].tokens)
        else:
            queue.append(Row(index, limit))
    if not queue:
        return
    waiting = encoded if len(queue) == len(drafts) else encoded.select([row.index for row in queue])
    state = None
    with out.timed("verify"):
        if params.theta_lm <= 1:
            state = decoder.start(waiting)
            queue = _verify(decoder, state, queue, drafts, params, out)
        else:
            queue = _from_the_start(decoder, queue)
    going = [row for row in queue if not row.done]
    with out.timed("fallback"):
        if going and (state is None or params.fallback == "restart" or not params.reuse_kv):
            state = decoder.start(encoded.select([row.index for row in going]))
    follow(decoder, state, going, _tails(going, drafts, params), params, out)
    for row in queue:
        out.rows[row.index].tokens, out.rows[row.index].route = row.tokens, FALLBACK


def _tails(rows: list[Row], drafts: list[Draft], params: CTCDraftParams) -> Tails:
    """Return what of each rejected draft may still be taken up: all after the doubtful token, once it is reached again.

    None where decoding begins anew, or was not preceded by a verify pass.
    """
    resumed = params.theta_lm <= 1 and params.fallback == "prefix" and params.resync != "none"
    tails: Tails = {}
    for row in rows:
        rest = drafts[row.index].tokens[: row.limit][len(row.tokens) - 1 :] if resumed and row.tokens else []
        tail = tails[row.index] = Tail(rest, rest)
        if rest:
            tail.move(0, row.tokens[-1], params)
    return tails


def passes_entropy(draft: Draft, params: CTCDraftParams) -> bool:
    """Tell whether gate 1 lets `draft` pass; an empty one never does."""
    theta = params.theta_ctc
    return theta is not None and theta >= 0 and bool(draft.tokens) and draft.entropy <= theta


def likelihoods(logits: Tensor, tokens: list[list[int]], start: int, eos: int) -> Tensor:
    """Return q_j `(B, γ+1)`: the probability of each draft token, then of EOS, from logits `(B, n, V)`.

    Position `start` of `logits` predicts the first draft token. Shorter rows are filled with 1. float32 or wider.
    """
    width = max(map(len, tokens)) + 1
    wanted = torch.tensor([row + [eos] * (width - len(row)) for row in tokens], device=logits.device)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    table = torch.softmax(wide[:, start : start + width], dim=-1)
    q = table.gather(2, wanted[:, :, None]).squeeze(2)
    ends = torch.tensor([len(row) for row in tokens], device=logits.device)
    beyond = torch.arange(width, device=logits.device) > ends[:, None]
    return q.masked_fill(beyond, 1.0)


def _verify(
    decoder: Any, state: Any, queue: list[Row], drafts: list[Draft], params: CTCDraftParams, out: Decoded
) -> list[Row]:
    """Ask the decoder about every draft in one pass; return the rejected rows, ready to go on after their prefix."""
    prompt, eos = list(decoder.prompt), decoder.eos
    tokens = [drafts[row.index].tokens[: row.limit] for row in queue]
    logits = step(decoder, state, [prompt + row for row in tokens], out.work)
    out.work.verifies += 1
    first = len(prompt) - 1
    q = likelihoods(logits, tokens, first, eos)
    doubtful = (q < params.theta_lm).tolist()
    choices = logits[:, first:].argmax(dim=-1).tolist()
    rejected: list[Row] = []
    for place, row in enumerate(queue):
        draft, result = tokens[place], out.rows[row.index]
        ends = params.eos_check and len(draft) < row.limit
        cut = next((j for j in range(len(draft) + ends) if doubtful[place][j]), None)
        if not draft and not ends:
            cut = 0
        result.kept = len(draft) if cut is None else cut
        result.stats.count(len(draft), result.kept, result.kept + (ends or cut is not None))
        if cut is None:
            result.tokens, result.route = draft, VERIFY
            row.done = True
        elif params.fallback == "restart":
            row.pending = prompt
        else:
            _resume_after(row, draft[:cut], choices[place][cut], prompt, params, eos)
        if cut is not None:
            rejected.append(row)
    _roll_back(state, queue, prompt, params)
    return rejected


def _resume_after(
    row: Row, prefix: list[int], chosen: int, prompt: list[int], params: CTCDraftParams, eos: int
) -> None:
    """Set `row` to go on after `prefix`; the decoder's choice there is known already."""
    row.tokens = list(prefix)
    row.take(chosen, eos)
    if not params.reuse_kv:
        row.pending = prompt + row.tokens


def _roll_back(state: Any, queue: list[Row], prompt: list[int], params: CTCDraftParams) -> None:
    """Keep in `state` the rows that go on, each with its prompt and verified prefix, the newest token excepted."""
    if params.fallback == "restart" or not params.reuse_kv:
        return
    if going := keep(state, queue, [not row.done for row in queue]):
        state.crop([len(prompt) + len(row.tokens) - 1 for row in going])


def _from_the_start(decoder: Any, queue: list[Row]) -> list[Row]:
    for row in queue:
        row.pending = list(decoder.prompt)
    return queue
