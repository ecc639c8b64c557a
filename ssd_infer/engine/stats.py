"""What a decoding counted and how long its parts took.

Tokens past EOS, a stop sequence or the length limit count as neither drafted nor accepted nor emitted.

Where drafts form a tree, `drafted` counts all its nodes and `accepted` those of the accepted path: α is then the share
of nodes that came to something, and τ stays tokens a verify. Positions are depths: α_k is how often any of the nodes
that followed k-1 accepted ones was accepted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class RowStats:
    """Counters of one row, or the sum over rows."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    histogram: list[int] = field(default_factory=list)
    """histogram[j] = verify passes that accepted exactly j tokens."""
    per_position_drafted: list[int] = field(default_factory=list)
    """Drafts at position k whose predecessors were all accepted: the denominator of the conditional α_k."""
    per_position_accepted: list[int] = field(default_factory=list)
    """Accepted drafts at position k: the numerator of α_k."""
    trace: list[tuple[int, int, int]] = field(default_factory=list)
    """Of a row, in order: tokens emitted before a verify pass, drafted and accepted in it; a sum over rows has none."""
    arrived: list[int] = field(default_factory=list)
    """Of a row: its tokens at each of the call's `moments` until it ended; a sum over rows has none."""

    @property
    def alpha(self) -> float | None:
        """α = Σ accepted / Σ drafted, or None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tau(self) -> float | None:
        """τ = accepted per verify + 1, or None without a verify pass."""
        return self.accepted / self.rounds + 1 if self.rounds else None

    def count(self, drafted: int, accepted: int, emitted: int, refused: bool | None = None) -> None:
        """Record one verify pass of this row.

        `refused` says whether drafts after the accepted ones were; None where all drafts follow each other.
        """
        self.trace.append((self.emitted, drafted, accepted))
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.emitted += emitted
        _bump(self.histogram, accepted)
        for position in range(accepted):
            _bump(self.per_position_accepted, position)
            _bump(self.per_position_drafted, position)
        if accepted < drafted if refused is None else refused:
            _bump(self.per_position_drafted, accepted)
            _pad(self.per_position_accepted, accepted + 1)

    def add(self, other: RowStats) -> None:
        """Add the counters of another row."""
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.emitted += other.emitted
        for name in ("histogram", "per_position_drafted", "per_position_accepted"):
            mine, theirs = getattr(self, name), getattr(other, name)
            _pad(mine, len(theirs))
            for index, value in enumerate(theirs):
                mine[index] += value


@dataclass(slots=True)
class TotalStats(RowStats):
    """The sum over rows, with forwards and seconds of the whole call."""

    forwards: dict[str, int] = field(default_factory=lambda: {"target": 0, "draft": 0})
    seconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "draft": 0.0, "verify": 0.0})


@dataclass(slots=True)
class Stats:
    """Statistics of one `generate` call: `total`, and `rows` in the order of the input."""

    total: TotalStats
    rows: list[RowStats]
    report: dict[str, Any] = field(default_factory=dict)
    """What the drafter tells about itself: settings it chose, searches it ran, why it stopped drafting."""
    moments: list[int] = field(default_factory=list, compare=False)
    """`time.perf_counter_ns()` when tokens had reached the host: after prefill, then after every verify pass."""

    @classmethod
    def empty(cls, rows: int) -> Stats:
        """Return zeroed statistics for `rows` rows."""
        return cls(TotalStats(), [RowStats() for _ in range(rows)])

    def finish(self) -> None:
        """Fold the rows into the total."""
        for row in self.rows:
            self.total.add(row)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def _pad(values: list[int], length: int) -> None:
    values.extend([0] * (length - len(values)))


def _bump(values: list[int], index: int) -> None:
    _pad(values, index + 1)
    values[index] += 1
