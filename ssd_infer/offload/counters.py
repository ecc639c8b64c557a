"""What a resident set did: hits, reads, waste, waiting."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any

from ssd_infer.offload.policies import belady_loads


@dataclass(slots=True)
class ExpertCounters:
    """Totals since the last `reset`; a forward of one layer asks for each expert once, whatever its tokens."""

    asked: int = 0
    """Experts that forward passes asked for."""
    hits: int = 0
    """Those that were resident."""
    late: int = 0
    """Those whose read, begun ahead, was still running or queued."""
    reads: int = 0
    """Experts read from the store."""
    ahead: int = 0
    """Reads begun before a forward pass asked."""
    wasted: int = 0
    """Experts read ahead that left unused."""
    bytes: int = 0
    stall_seconds: float = 0.0
    """Time forward passes waited for a read."""
    read_seconds: float = 0.0
    """Time reads took, on their own threads."""
    visits: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """(layer, experts) of every forward pass of a layer, where a trace was asked for."""

    def report(self, tokens: int, expert_bytes: int) -> dict[str, Any]:
        """Return JSON-ready figures, per emitted token where `tokens` says how many there were.

        Every drafting generation asks for it, so it must not depend on how long the trace is.
        """
        names = (part.name for part in fields(self) if part.name != "visits")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found["hit_rate"] = self.hits / self.asked if self.asked else None
        found["wasted_bytes"] = self.wasted * expert_bytes
        if tokens:
            found["bytes_per_token"] = self.bytes / tokens
            found["stall_seconds_per_token"] = self.stall_seconds / tokens
        return found

    def bound(self, capacity: int) -> dict[str, Any]:
        """Return the fewest reads that `capacity` experts in memory allow for the trace, and the reads over them."""
        best = belady_loads(self.visits, capacity)
        return {"belady_reads": best, "reads_over_belady": self.reads / best if best else None}


def distinct(experts: Collection[int]) -> tuple[int, ...]:
    """Return `experts` once each, in ascending order."""
    return tuple(sorted(set(experts)))
