"""Verify a CTC transcript token by token: the output is that of plain greedy decoding, whatever the draft says.

One pass scores the whole transcript. What matches the decoder's own choices is kept; at the first mismatch its choice
replaces the draft's, the rest of the draft is realigned behind it and verified again. After some rounds the decoder
goes on alone, so a bad draft costs little more than plain decoding.
"""

from __future__ import annotations

from typing import Any

from ssd_infer.speech.ctc import Draft
from ssd_infer.speech.greedy import Row, finish, keep, step
from ssd_infer.speech.params import CTCDraftParams
from ssd_infer.speech.result import FALLBACK, VERIFY, Decoded, RowResult


def verify_exactly(
    decoder: Any, encoded: Any, drafts: list[Draft], limits: list[int], params: CTCDraftParams, out: Decoded
) -> None:
    """Decode the batch `encoded` into `out`, whose row i belongs to `drafts[i]`."""
    prompt, eos = list(decoder.prompt), decoder.eos
    rows = [Row(index, limit, pending=prompt) for index, limit in enumerate(limits)]
    tails = [_before_end(draft.tokens, eos) for draft in drafts]
    going = rows
    with out.timed("verify"):
        state = decoder.start(encoded)
        for number in range(params.max_verify_rounds):
            if number and not any(tails[row.index] for row in going):
                break
            _round(decoder, state, going, tails, params, out)
            going = keep(state, going, [not row.done for row in going])
            if not going:
                break
            state.crop([len(prompt) + len(row.tokens) - 1 for row in going])
    unfinished = {row.index for row in going}
    with out.timed("fallback"):
        finish(decoder, state, going, out.work)
    for row in rows:
        result = out.rows[row.index]
        result.tokens, result.route = row.tokens, FALLBACK if row.index in unfinished else VERIFY
        result.kept = _common(row.tokens, drafts[row.index].tokens)


def realign(tail: list[int], chosen: int) -> list[int]:
    """Return what may follow `chosen`, which the decoder put where the draft had `tail[0]`.

    If the draft's next token is the chosen one, the draft had one token too many; otherwise one was mistaken.
    """
    return tail[2:] if len(tail) > 1 and tail[1] == chosen else tail[1:]


def _round(
    decoder: Any, state: Any, rows: list[Row], tails: list[list[int]], params: CTCDraftParams, out: Decoded
) -> None:
    """Verify every row's tail in one pass and take what matches, plus the decoder's own next token."""
    fed = [row.pending + tails[row.index][: row.limit - len(row.tokens)] for row in rows]
    table = step(decoder, state, fed, out.work).argmax(dim=-1).tolist()
    out.work.verifies += 1
    for row, tokens, choices in zip(rows, fed, table, strict=True):
        first = len(row.pending) - 1
        tail = tokens[first + 1 :]
        taken = _common(tail, choices[first:])
        chosen = choices[first + taken]
        row.tokens.extend(tail[:taken])
        row.done = len(row.tokens) >= row.limit
        if not row.done:
            row.take(chosen, decoder.eos)
        _count(out.rows[row.index], tail, taken, row)
        rest = tails[row.index][taken:]
        tails[row.index] = realign(rest, chosen) if params.resync == "shift" else []


def _count(result: RowResult, tail: list[int], taken: int, row: Row) -> None:
    """Record one verify pass; drafted tokens past the end count nowhere."""
    drafted = min(len(tail), taken + 1) if row.done else len(tail)
    full = row.done and taken == len(tail) and len(row.tokens) >= row.limit
    result.stats.count(drafted, taken, taken + (0 if full else 1))


def _before_end(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos)] if eos in tokens else list(tokens)


def _common(first: list[int], second: list[int]) -> int:
    """Return how many leading tokens agree."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
