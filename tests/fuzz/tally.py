"""What a fuzzing run did: decodings, refusals, rounds with drafts, and how many it took to find a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

FAIR = 0.2
"""Least share of the decodings that could draft in which a strategy must have drafted."""
MOST_REFUSED = 0.5


@dataclass(slots=True)
class Tally:
    """Counters of one arm."""

    decodings: int = 0
    """Calls that decoded a batch with the draft under test and were compared."""
    rows: int = 0
    tokens: int = 0
    refusals: int = 0
    """Calls refused with a reason, by the library's own errors."""
    ties: int = 0
    """Cases left out since a reference's best token has next to no lead over the second."""
    could: int = 0
    """Decodings in which there was something to draft."""
    drafted: int = 0
    """Those of them in which something was drafted."""
    rounds: int = 0
    """Verify passes of rows that had drafts to judge."""
    accepted: int = 0
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the counters of another run."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def refuse(self, refusal: Exception) -> None:
        """Count a refusal; AssertionError if it does not say why."""
        if not str(refusal):
            raise AssertionError("a refusal must say why") from refusal
        self.refusals += 1

    def unfair(self) -> str | None:
        """Say why this run proves nothing, None if it does: mostly refused, or drafts that drafted nothing."""
        if self.refusals > MOST_REFUSED * (self.refusals + self.decodings):
            return f"{self.refusals} of {self.refusals + self.decodings} calls were refused"
        if self.drafted < FAIR * self.could or not self.drafted:
            return f"drafted in {self.drafted} of {self.could} decodings that could draft"
        return None


_COLUMNS = ("decodings", "rows", "tokens", "refusals", "ties", "drafted", "rounds", "accepted", "seconds")


def table(tallies: Mapping[str, Tally]) -> str:
    """Return one line an arm, and their sum."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    head = f"{'':34}" + "".join(f"{name:>10}" for name in _COLUMNS)
    lines = [_line(name, tally) for name, tally in {**tallies, "all": total}.items()]
    return "\n".join([head, *lines])


def _line(name: str, tally: Tally) -> str:
    return f"{name:34}" + "".join(f"{round(getattr(tally, column)):>10}" for column in _COLUMNS)
