"""Explain a speedup: predict it from acceptance and the measured cost of drafting and verifying."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ssd_infer.engine.stats import Stats, TotalStats


@dataclass(slots=True)
class Counted:
    """Statistics summed over calls; `passes` counts batched decoding passes after prefill."""

    total: TotalStats = field(default_factory=TotalStats)
    passes: int = 0

    def add(self, stats: Stats) -> None:
        """Add one call; its prefill is the one target forward that decodes nothing further."""
        self.total.add(stats.total)
        for key, count in stats.total.forwards.items():
            self.total.forwards[key] = self.total.forwards.get(key, 0) + count
        for key, seconds in stats.total.seconds.items():
            self.total.seconds[key] = self.total.seconds.get(key, 0.0) + seconds
        self.passes += max(stats.total.forwards["target"] - 1, 0)

    @property
    def pass_seconds(self) -> float | None:
        """Seconds of one verify pass (one plain step when nothing drafts); None when there was none."""
        return self.total.seconds["verify"] / self.passes if self.passes else None


@dataclass(frozen=True, slots=True)
class Cost:
    """c and v relative to one plain step (None: not measured), and `gamma`, the draft forwards of one pass."""

    draft_ratio: float | None = None
    verify_ratio: float | None = None
    gamma: float = 0.0

    def predicted(self, total: TotalStats) -> float | None:
        """Predict the speedup of these counters; None when acceptance or cost is missing."""
        if self.draft_ratio is None or not self.verify_ratio or not total.rounds or not total.drafted:
            return None
        return predicted_speedup(
            total.accepted / total.rounds, self.gamma, self.draft_ratio, self.verify_ratio
        )

    def fields(self, total: TotalStats) -> dict[str, Any]:
        """Return the report's `cost` object."""
        return {
            "draft_ratio_c": self.draft_ratio,
            "verify_ratio": self.verify_ratio,
            "forwards": dict(total.forwards),
        }


def measured_cost(counted: Counted, plain: Counted) -> Cost:
    """Return c and v of a strategy from its own timers, relative to the plain loop's; c is per draft forward.

    A drafter that runs no forward (lookup) has c per drafted token instead.
    """
    step = plain.pass_seconds
    if not step or not counted.passes:
        return Cost()
    drafts = counted.total.forwards["draft"] or counted.total.drafted
    c = counted.total.seconds["draft"] / drafts / step if drafts else 0.0
    return Cost(c, (counted.pass_seconds or 0.0) / step, drafts / counted.passes)


def predicted_speedup(accepted: float, gamma: float, c: float, verify_ratio: float) -> float:
    """Return (1 + γα) / (γc + v): `accepted` = γα tokens accepted a verify, v the cost of verifying γ+1 tokens.

    Pooled α belongs in this form only; the textbook form of 2211.17192 takes an independent per-token probability.
    """
    return (1 + accepted) / (gamma * c + verify_ratio)
