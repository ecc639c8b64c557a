"""Verify a CTC transcript token by token: the output is that of plain greedy decoding, whatever the draft says.

One pass scores the whole transcript. What matches the decoder's own choices is kept; at the first mismatch its choice
replaces the draft's. The rest of the draft is realigned (`tails.py`) and verified again. After some rejections the
decoder goes on alone, so a bad draft costs little more than plain decoding.
"""

from __future__ import annotations

from typing import Any

from ssd_infer.families.speech.greedy import Row, finish, keep, step
from ssd_infer.families.speech.result import FALLBACK, VERIFY, Decoded, RowResult
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.tails import Tail, Tails


def verify_exactly(
    decoder: Any, encoded: Any, drafts: list[Draft], limits: list[int], params: CTCDraftParams, out: Decoded
) -> None:
    """Decode the batch `encoded` into `out`, whose row i belongs to `drafts[i]`."""
    prompt, eos = list(decoder.prompt), decoder.eos
    rows = [Row(index, limit, pending=prompt) for index, limit in enumerate(limits)]
    own = [_before_end(draft.tokens, eos) for draft in drafts]
    tails = {index: Tail(tokens, tokens) for index, tokens in enumerate(own)}
    going = rows
    with out.timed("verify"):
        state = decoder.start(encoded)
        fed = [row.pending + tails[row.index].ready[: row.limit] for row in rows]
        _round(decoder, state, going, fed, tails, params, out)
        out.work.verifies += any(own)
        going = _rewind(state, going, len(prompt))
    follow(decoder, state, going, tails, params, out)
    for row in rows:
        result = out.rows[row.index]
        result.tokens, result.route = row.tokens, FALLBACK if tails[row.index].alone else VERIFY
        result.kept = _common(row.tokens, drafts[row.index].tokens)


def follow(
    decoder: Any, state: Any, going: list[Row], tails: Tails, params: CTCDraftParams, out: Decoded
) -> None:
    """Decode the rows `going` greedily to their ends, with what is left of their drafts; row i of `state` is the i-th.

    What comes out is plain greedy decoding's continuation of what each row holds.
    """
    prompt = len(decoder.prompt)
    while going and any(tails[row.index].rest for row in going):
        width = max(tails[row.index].piece for row in going)
        offers = [tails[row.index].offer(width)[: row.limit - len(row.tokens)] for row in going]
        with out.timed("verify" if width else "fallback"):
            fed = [row.pending + offer for row, offer in zip(going, offers, strict=True)]
            _round(decoder, state, going, fed, tails, params, out)
            out.work.verifies += width > 0
            going = _rewind(state, going, prompt)
    for row in going:
        tails[row.index].alone = True
    with out.timed("fallback"):
        finish(decoder, state, going, out.work)


def _round(
    decoder: Any,
    state: Any,
    rows: list[Row],
    fed: list[list[int]],
    tails: Tails,
    params: CTCDraftParams,
    out: Decoded,
) -> None:
    """Feed every row its pending tokens and some of its draft; take what matches, plus the decoder's own next token."""
    table = step(decoder, state, fed, out.work).argmax(dim=-1).tolist()
    for row, tokens, choices in zip(rows, fed, table, strict=True):
        tail, first = tails[row.index], len(row.pending) - 1
        draft, begins = tokens[first + 1 :], not row.tokens
        taken = _common(draft, choices[first:])
        chosen = choices[first + taken]
        row.tokens.extend(draft[:taken])
        row.done = len(row.tokens) >= row.limit
        if not row.done:
            row.take(chosen, decoder.eos)
        if draft or begins:
            _count(out.rows[row.index], draft, taken, row)
        tail.move(taken, chosen, params)


def _rewind(state: Any, rows: list[Row], prompt: int) -> list[Row]:
    """Keep the rows that go on; each forgets what it read beyond its tokens, the newest of which it reads next."""
    going = keep(state, rows, [not row.done for row in rows])
    lengths = [prompt + len(row.tokens) - 1 for row in going]
    if going and lengths != list(state.lengths):
        state.crop(lengths)
    return going


def _count(result: RowResult, draft: list[int], taken: int, row: Row) -> None:
    """Record one verify pass; drafted tokens past the end count nowhere."""
    drafted = min(len(draft), taken + 1) if row.done else len(draft)
    full = row.done and taken == len(draft) and len(row.tokens) >= row.limit
    result.stats.count(drafted, taken, taken + (0 if full else 1))


def _before_end(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos)] if eos in tokens else list(tokens)


def _common(first: list[int], second: list[int]) -> int:
    """Return how many leading tokens agree."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
