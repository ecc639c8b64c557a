"""What is left of a draft after the decoder rejected a token of it, and where in it the decoder stands by now.

The rest is taken up again where it aligns best with the decoder's own tokens since (fewest edits). Until some tokens in
a row agree, only the next two go along with a step, as a guess; then longer pieces are verified at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams

MATCH = 2
"""Tokens in a row that must agree before the rest of a draft is trusted again."""
GUESS = 2
"""Draft tokens that go along with a step while the rest is not trusted; in a batch, as many as fill its width."""
CHUNK = 24
"""Most tokens of a rest that one pass verifies: the pass is as wide as its longest row."""


@dataclass(slots=True)
class Tail:
    """What is left of one row's draft."""

    rest: list[int]
    """Draft tokens after the last that both agreed on."""
    ready: list[int]
    """Those of them that may come next."""
    trusted: bool = True
    fresh: list[int] = field(default_factory=list)
    """The decoder's own tokens since the last that both agreed on."""
    rounds: int = 0
    """Trusted drafts that were rejected."""
    alone: bool = False
    """The decoder had to choose a token that no draft foresaw, beside those that corrected a trusted one."""
    _edits: list[int] = field(default_factory=list)
    """Entry j: fewest edits between `fresh` and the first j tokens of `rest`."""

    @property
    def piece(self) -> int:
        """Return how many trusted tokens the next pass should verify."""
        return min(len(self.ready), CHUNK) if self.trusted else 0

    def offer(self, width: int) -> list[int]:
        """Return the draft tokens for a pass whose other rows verify up to `width` of theirs."""
        return self.ready[: self.piece or max(GUESS, width)]

    def move(self, taken: int, chosen: int, params: CTCDraftParams) -> None:
        """Go on after a pass that accepted `taken` of the ready tokens and then chose `chosen`."""
        self.alone |= not (self.trusted or taken)
        if self.trusted or taken:
            self.rest, self.fresh = self.ready[taken:], []
            self._edits = list(range(len(self.rest) + 1))
            if self.rest[:1] == [chosen]:
                self.rest = self.ready = self.rest[1:]
                self.trusted = True
                return
        self.rounds += self.trusted
        if self.rounds >= params.max_verify_rounds or params.resync == "none":
            self.rest, self.ready, self.trusted = [], [], False
        elif params.resync == "shift":
            self.rest = self.ready = realign(self.rest, chosen)
        else:
            self._align(chosen)

    def _align(self, chosen: int) -> None:
        """Find what may follow `chosen`: of several equally good places, one where it stands in the draft as well."""
        self.fresh.append(chosen)
        self._edits = _one_more(self._edits, self.rest, chosen)
        here = len(self.fresh)
        ahead = [place > 0 and self.rest[place - 1] == chosen for place in range(len(self.rest) + 1)]
        best = min(
            range(len(self.rest) + 1),
            key=lambda place: (self._edits[place], not ahead[place], abs(place - here)),
        )
        self.ready = self.rest[best:]
        self.trusted = here >= MATCH and self.rest[max(0, best - MATCH) : best] == self.fresh[-MATCH:]
        if self.trusted:
            self.rest, self.fresh = self.ready, []


Tails = dict[int, Tail]
"""By `Row.index`."""


def realign(tail: list[int], chosen: int) -> list[int]:
    """Return what may follow `chosen`, which the decoder put where the draft had `tail[0]`.

    If the draft's next token is the chosen one, the draft had one token too many; otherwise one was mistaken.
    """
    return tail[2:] if len(tail) > 1 and tail[1] == chosen else tail[1:]


def _one_more(edits: list[int], rest: list[int], token: int) -> list[int]:
    """Return the edits to the prefixes of `rest` once `token` has been appended (Wagner and Fischer)."""
    found = [edits[0] + 1]
    for place, other in enumerate(rest):
        found.append(min(edits[place + 1] + 1, found[place] + 1, edits[place] + (other != token)))
    return found
