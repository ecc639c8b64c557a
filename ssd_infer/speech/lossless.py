"""Verify a CTC transcript token by token: the output is that of plain greedy decoding, whatever the draft says.

One pass scores the whole transcript. What matches the decoder's own choices is kept; at the first mismatch its choice
replaces the draft's. The rest of the draft is realigned, at once (`shift`) or as soon as the decoder's own next tokens
reappear in it (`match`), and verified again. After some rounds the decoder goes on alone, so a bad draft costs little
more than plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ssd_infer.speech.ctc import Draft
from ssd_infer.speech.greedy import Row, finish, keep, step
from ssd_infer.speech.params import CTCDraftParams
from ssd_infer.speech.result import FALLBACK, VERIFY, Decoded, RowResult

MATCH = 2
"""Tokens in a row that must reappear in the draft before its rest is trusted again."""
REACH = 8
"""How far beyond its expected place they are looked for."""
SHORTEST = 3
"""Fewer tokens than this are cheaper to decode than to verify."""


@dataclass(slots=True)
class Tail:
    """What is left of one row's draft."""

    rest: list[int]
    """Draft tokens not used yet."""
    ready: list[int]
    """Those of them that the next pass verifies."""
    fresh: list[int] = field(default_factory=list)
    """The decoder's own tokens since the last mismatch."""
    rounds: int = 0
    alone: bool = False
    """The decoder had to choose a token with no draft to verify."""

    def move(self, taken: int, chosen: int, params: CTCDraftParams) -> None:
        """Realign after a pass that accepted `taken` of the ready tokens and then chose `chosen`."""
        verified = bool(self.ready) or not self.rounds
        if verified:
            self.rounds += 1
            self.rest, self.fresh = self.rest[taken:], [chosen]
        else:
            self.alone = True
            self.fresh.append(chosen)
        self.ready = []
        if self.rounds >= params.max_verify_rounds or params.resync == "none":
            self.rest = []
        elif params.resync == "match":
            self.rest, self.ready = rejoin(self.rest, self.fresh)
        elif verified:
            self.rest = self.ready = realign(self.rest, chosen)


Tails = dict[int, Tail]
"""By `Row.index`."""


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
        _round(decoder, state, going, tails, params, out)
        going = _settle(state, going, len(prompt))
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
        with out.timed("verify" if any(tails[row.index].ready for row in going) else "fallback"):
            _round(decoder, state, going, tails, params, out)
            going = _settle(state, going, prompt)
    for row in going:
        tails[row.index].alone = True
    with out.timed("fallback"):
        finish(decoder, state, going, out.work)


def realign(tail: list[int], chosen: int) -> list[int]:
    """Return what may follow `chosen`, which the decoder put where the draft had `tail[0]`.

    If the draft's next token is the chosen one, the draft had one token too many; otherwise one was mistaken.
    """
    return tail[2:] if len(tail) > 1 and tail[1] == chosen else tail[1:]


def rejoin(rest: list[int], fresh: list[int]) -> tuple[list[int], list[int]]:
    """Return the unused draft, and what of it is ready: all that follows the decoder's last `MATCH` tokens in it."""
    if len(fresh) < MATCH:
        return rest, []
    last = fresh[-MATCH:]
    for start in range(min(len(rest) - MATCH + 1, len(fresh) + REACH)):
        if rest[start : start + MATCH] == last:
            tail = rest[start + MATCH :]
            return (tail, tail) if len(tail) >= SHORTEST else ([], [])
    return rest, []


def _round(
    decoder: Any, state: Any, rows: list[Row], tails: Tails, params: CTCDraftParams, out: Decoded
) -> None:
    """Feed every row what is ready of its draft; take what matches, plus the decoder's own next token."""
    fed = [row.pending + tails[row.index].ready[: row.limit - len(row.tokens)] for row in rows]
    table = step(decoder, state, fed, out.work).argmax(dim=-1).tolist()
    out.work.verifies += any(len(tokens) > len(row.pending) for row, tokens in zip(rows, fed, strict=True))
    for row, tokens, choices in zip(rows, fed, table, strict=True):
        tail, first = tails[row.index], len(row.pending) - 1
        draft = tokens[first + 1 :]
        taken = _common(draft, choices[first:])
        chosen = choices[first + taken]
        row.tokens.extend(draft[:taken])
        row.done = len(row.tokens) >= row.limit
        if not row.done:
            row.take(chosen, decoder.eos)
        if draft or not tail.rounds:
            _count(out.rows[row.index], draft, taken, row)
        tail.move(taken, chosen, params)


def _settle(state: Any, rows: list[Row], prompt: int) -> list[Row]:
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
