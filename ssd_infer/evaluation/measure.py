"""Time contenders against each other: interleaved per prompt in rotating order, so that drift hits all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ssd_infer.evaluation.bootstrap import Totals
from ssd_infer.evaluation.budget import Deadline
from ssd_infer.evaluation.contenders import Contender, Decoded, Prompts, one_line
from ssd_infer.evaluation.cost_model import Counted

WARM_UP_TOKENS = 12
FEWEST_TOKENS = 16
Key = tuple[int, int, int]
"""(repeat, unit, row)"""

MINIMUM_UNITS = 2
"""Batches measured for every contender even when the time limit has passed."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One batch of prompts of one task, decoded together; the bootstrap resamples units."""

    index: int
    task: str
    prompts: Prompts


@dataclass(frozen=True, slots=True)
class Record:
    """One timed call of one contender on one unit."""

    unit: int
    task: str
    repeat: int
    decoded: Decoded


@dataclass(slots=True)
class Measurements:
    """All records by contender name; every contender still running has records of the same (unit, repeat) pairs."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    rounds_done: int = 0
    rounds_planned: int = 0
    new_tokens: int = 0
    """Tokens decoded a prompt: what was asked for, or fewer where the time limit allows no more."""

    def totals(self, name: str, task: str | None = None) -> list[Totals]:
        """Return tokens and seconds of each unit summed over its repeats, in unit order."""
        sums: dict[int, list[float]] = {}
        for record in self._of(name, task):
            entry = sums.setdefault(record.unit, [0, 0.0])
            entry[0] += sum(map(len, record.decoded.tokens))
            entry[1] += record.decoded.seconds
        return [Totals(int(sums[unit][0]), sums[unit][1]) for unit in sorted(sums)]

    def outputs(self, name: str) -> dict[Key, list[int]]:
        """Return the new tokens of every (repeat, unit, row)."""
        return {
            (record.repeat, record.unit, row): tokens
            for record in self.records.get(name, [])
            for row, tokens in enumerate(record.decoded.tokens)
        }

    def counted(self, name: str, task: str | None = None) -> Counted:
        """Return the engine's counters and timers summed over all records; zeros where the engine did not run."""
        counted = Counted()
        for record in self._of(name, task):
            if record.decoded.stats is not None:
                counted.add(record.decoded.stats)
        return counted

    def tasks(self) -> list[str]:
        """Return the measured tasks in order of first appearance."""
        return list(dict.fromkeys(record.task for records in self.records.values() for record in records))

    def _of(self, name: str, task: str | None) -> list[Record]:
        return [record for record in self.records.get(name, []) if task in (None, record.task)]


def measure(
    contenders: Sequence[Contender],
    units: Sequence[Unit],
    repeats: int,
    max_new_tokens: int,
    seed: int,
    device: torch.device,
    deadline: Deadline,
) -> Measurements:
    """Run every contender on every unit `repeats` times; whoever raises drops out with the reason, the rest go on.

    Stops after a complete round (one unit, all contenders) once `deadline` has passed, so what is there stays paired.
    """
    found = Measurements(rounds_planned=repeats * len(units))
    spent = _warm_up(contenders, units, max_new_tokens, device)
    found.new_tokens = max_new_tokens = fitting_tokens(max_new_tokens, spent, deadline.left)
    for repeat in range(repeats):
        for unit in units:
            if deadline.passed and found.rounds_done >= MINIMUM_UNITS:
                return found
            _round(found, contenders, unit, repeat, max_new_tokens, seed, device)
            found.rounds_done += 1
    return found


def fitting_tokens(wanted: int, warm_seconds: float, left: float) -> int:
    """Return how many tokens a prompt may get so that the fewest rounds fit into `left` seconds.

    `warm_seconds` is what one round of at most `WARM_UP_TOKENS` tokens took. Never below `FEWEST_TOKENS`.
    """
    per_token = warm_seconds / min(WARM_UP_TOKENS, wanted)
    affordable = left / (MINIMUM_UNITS * per_token) if per_token > 0 else wanted
    return wanted if affordable >= wanted else min(wanted, max(FEWEST_TOKENS, int(affordable)))


def _warm_up(
    contenders: Sequence[Contender], units: Sequence[Unit], max_new_tokens: int, device: torch.device
) -> float:
    """Run every contender briefly, twice; return the seconds of the second time, when nothing is lazy any more."""
    seconds = 0.0
    for contender in contenders:
        try:
            if contender.failure is None:
                brief = min(WARM_UP_TOKENS, max_new_tokens)
                contender.run(units[0].prompts, brief, 0, device)
                seconds += contender.run(units[0].prompts, brief, 0, device).seconds
        except Exception as error:  # noqa: BLE001  any failure of a contender is a row of the report, not its end
            contender.failure = one_line(error)
    return seconds


def _round(
    found: Measurements,
    contenders: Sequence[Contender],
    unit: Unit,
    repeat: int,
    max_new_tokens: int,
    seed: int,
    device: torch.device,
) -> None:
    """Run each contender once on one unit, starting with another one every round."""
    running = [contender for contender in contenders if contender.failure is None]
    start = found.rounds_done % len(running) if running else 0
    for contender in running[start:] + running[:start]:
        try:
            decoded = contender.run(unit.prompts, max_new_tokens, seed + 1000 * repeat + unit.index, device)
        except Exception as error:  # noqa: BLE001
            contender.failure = one_line(error)
            found.records.pop(contender.name, None)
            continue
        found.records.setdefault(contender.name, []).append(Record(unit.index, unit.task, repeat, decoded))
