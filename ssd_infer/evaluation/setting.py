"""One setting of an evaluation, at which everybody is timed and judged, and what it produced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.measure import Measurements, Unit
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.evaluation.studies import Findings
from ssd_infer.evaluation.summary import AGAIN, Scoreboard
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for everybody, and by when each phase must be done."""

    number: int
    """Its place in the run, from 0."""
    said: str
    """In words, such as `greedy` or `batch size 8`."""
    suffix: str
    """What names of its rows end in, such as `:t1`."""
    units: Sequence[Unit]
    batch: int
    """Most rows of a unit."""
    resolving: Deadline
    """By when parameters must be chosen."""
    measuring: Deadline
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(slots=True)
class Section:
    """What one setting produced."""

    setting: Setting
    contenders: list[Contender]
    absent: list[Absent]
    found: Measurements
    board: Scoreboard | None
    verdicts: dict[str, LosslessResult] = field(default_factory=dict)
    more: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Additions to a strategy row's `extra`, by name."""
    faults: dict[str, str] = field(default_factory=dict)
    """How a strategy's output broke its promise in a study, by name."""

    @property
    def sampling(self) -> Sampling:
        """Return how tokens are chosen."""
        return self.setting.sampling

    def learn(self, findings: Findings) -> None:
        """Take what studies found of rows of this setting."""
        for name, facts in findings.facts.items():
            self.more.setdefault(name, {}).update(facts)
        self.faults |= findings.faults


def again(baseline: Contender, suffix: str) -> Contender:
    """Return `baseline` a second time: how far the two seem apart is the noise of the report."""
    name = baseline.name.removesuffix(suffix) + AGAIN + suffix
    return Contender(name, "again", baseline.decode, listener=baseline.listener)


def stand_in(contenders: list[Contender]) -> None:
    """Let every strategy that decodes plainly stand for the first baseline that can run: it is the same decoding."""
    plain = next((item for item in contenders if item.kind == "baseline" and item.failure is None), None)
    for item in contenders:
        if item.kind == "strategy" and item.plain and plain is not None:
            item.stands_for = plain.name


def shortfalls(found: Measurements, wanted: int, how: str) -> list[str]:
    """Say what the time limit left out; `wanted` 0 asked for no number of tokens."""
    notes = []
    if found.new_tokens < wanted:
        notes.append(
            f"the time limit allowed {found.new_tokens} of {wanted} tokens a prompt ({how}); speeds are of {wanted}, "
            "the rest at the steady rate of those decoded"
        )
    if found.rounds_done < found.rounds_planned:
        notes.append(
            f"the time limit ended the runs after {found.rounds_done} of {found.rounds_planned} rounds ({how})"
        )
    return notes
