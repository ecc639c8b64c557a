"""Time contenders against each other: interleaved per prompt, in blocks with an order of their own.

Drift within a block hits all alike; what a run has of its own (its order, what is warm, what else the machine does)
differs between blocks, and the interval is taken over blocks as well as prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssd_infer.evaluation.bootstrap import Totals
from ssd_infer.evaluation.contenders import Contender, Decoded, one_line
from ssd_infer.evaluation.cost_model import Counted
from ssd_infer.evaluation.full_length import at_full_length
from ssd_infer.evaluation.latency import latency
from ssd_infer.tuning.budget import Deadline, OutOfTime

WARM_UP_TOKENS = 12
FEWEST_TOKENS, ADEQUATE_TOKENS = 16, 32
"""Tokens a prompt gets however little time there is, and below which more prompts are no gain: prefill would rule."""
BLOCKS, WANTED_ROUNDS = 5, 4
"""Stretches of a measurement, and the rounds that tokens are cut for where the time is short.

The beginning of a text is not like all of it: texts cut at 32 of 96 tokens accepted 0.54 to 0.67 of the drafts
where whole ones accepted 0.35, and no interval over prompts knows of that. So few whole texts come before many parts.
"""
Key = tuple[int, int, int]
"""(repeat, unit, row)"""

MINIMUM_UNITS = 2
"""Batches measured for every contender even when the time limit has passed."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One batch of prompts or utterances of one task, decoded together; the bootstrap resamples units."""

    index: int
    task: str
    prompts: list[Any]
    """What is decoded: rows of token ids, or the samples of utterances."""


def prompts_by_row(units: Sequence[Unit]) -> dict[tuple[int, int], list[int]]:
    """Return (unit, row) → prompt."""
    return {(unit.index, row): prompt for unit in units for row, prompt in enumerate(unit.prompts)}


@dataclass(frozen=True, slots=True)
class Record:
    """One timed call of one contender on one unit."""

    unit: int
    task: str
    repeat: int
    decoded: Decoded
    block: int = 0


@dataclass(slots=True)
class Measurements:
    """All records by contender name; every contender still running has records of the same (unit, repeat) pairs."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    """Name of a contender that decodes plainly → name of the baseline whose records are its own."""
    rounds_done: int = 0
    rounds_planned: int = 0
    blocks: int = 0
    """Stretches begun."""
    new_tokens: int = 0
    """Tokens decoded a prompt: what was asked for, or fewer where the time limit allows no more."""
    wanted_tokens: int = 0
    """Tokens a prompt that were asked for, and that all speeds are of."""
    seconds: float = 0.0
    """What all rounds took."""

    def of(self, name: str, task: str | None = None) -> list[Record]:
        """Return the records of a contender, those it shares included; none where it did not run."""
        records = self.records.get(self.shared.get(name, name), [])
        return [record for record in records if task in (None, record.task)]

    def totals(
        self, name: str, task: str | None = None, counted: Callable[[Record], tuple[int, float]] | None = None
    ) -> list[Totals]:
        """Return tokens and seconds of each unit in each block, summed over repeats there, in order.

        They are those of calls as long as asked for (see `at_full_length`), or what `counted` says of a call: an amount
        of something else and its seconds.
        """
        sums: dict[tuple[int, int], list[float]] = {}
        for record in self.of(name, task):
            entry = sums.setdefault((record.block, record.unit), [0, 0.0])
            amount, seconds = (counted or self._at_full_length)(record)
            entry[0] += amount
            entry[1] += seconds
        return [Totals(int(sums[key][0]), sums[key][1], key[1], key[0]) for key in sorted(sums)]

    def _at_full_length(self, record: Record) -> tuple[int, float]:
        return at_full_length(record.decoded, self.new_tokens, self.wanted_tokens)

    def outputs(self, name: str) -> dict[Key, list[int]]:
        """Return the new tokens of every (repeat, unit, row)."""
        return {
            (record.repeat, record.unit, row): tokens
            for record in self.of(name)
            for row, tokens in enumerate(record.decoded.tokens)
        }

    def counted(self, name: str, task: str | None = None) -> Counted:
        """Return the engine's counters and timers summed over all records; zeros where the engine did not run."""
        counted = Counted()
        for record in self.of(name, task):
            if record.decoded.stats is not None:
                counted.add(record.decoded.stats)
        return counted

    def latency(self, name: str) -> dict[str, float] | None:
        """Return TTFT and ITL of a contender's timed calls in milliseconds; None where nobody noted them."""
        return latency(record.decoded.arrivals for record in self.of(name))

    def drop(self, names: Iterable[str]) -> None:
        """Forget the records of contenders that failed, which would not pair with the others' any more."""
        for name in names:
            self.records.pop(name, None)

    def tasks(self) -> list[str]:
        """Return the measured tasks in order of first appearance."""
        return list(dict.fromkeys(record.task for records in self.records.values() for record in records))


def measure(
    contenders: Sequence[Contender],
    units: Sequence[Unit],
    repeats: int,
    max_new_tokens: int,
    seed: int,
    device: torch.device,
    deadline: Deadline,
    blocks: int = BLOCKS,
) -> Measurements:
    """Run every contender on every unit `repeats` times; whoever raises drops out with the reason, the rest go on.

    `max_new_tokens` 0 sets no limit: what is decoded ends by itself. A contender that decodes plainly (`plain`) is not
    run: it shares the records of the baseline it `stands_for`. All units come before the first repeat. Stops after a
    complete round (one unit, all contenders) once `deadline` has passed, or would before half of another; so what is
    there stays paired.
    """
    found = Measurements(rounds_planned=repeats * len(units), wanted_tokens=max_new_tokens)
    found.shared = {item.name: item.stands_for for item in contenders if item.stands_for is not None}
    running = [item for item in contenders if item.stands_for is None]
    spent = _warm_up(running, units[0], max_new_tokens, device)
    if max_new_tokens:
        found.new_tokens = max_new_tokens = fitting_tokens(max_new_tokens, spent, deadline.left)
    stretch, begun = Stretch(blocks, found.rounds_planned, deadline), deadline.left
    for repeat, unit in [(repeat, unit) for repeat in range(repeats) for unit in units]:
        if found.rounds_done >= MINIMUM_UNITS and _over(deadline, begun, found.rounds_done):
            break
        block = stretch.at(found.rounds_done)
        if block >= found.blocks:
            if found.rounds_done:
                _warm_up(running, unit, WARM_UP_TOKENS, device)
                found.drop(item.name for item in running if item.failure is not None)
            found.blocks = block + 1
        order = drawn(running, seed, block, found.rounds_done)
        _round(found, order, Turn(unit, repeat, block, seed), max_new_tokens, device)
        found.rounds_done += 1
    return found


def _over(deadline: Deadline, begun: float, rounds: int) -> bool:
    """Tell whether the time is up, or will be before half of another round like those done."""
    if math.isinf(begun):
        return False
    return deadline.left <= 0.5 * (begun - deadline.left) / rounds


@dataclass(frozen=True, slots=True)
class Turn:
    """One unit's turn: which repeat of it, in which block, under which seed."""

    unit: Unit
    repeat: int
    block: int
    seed: int


class Stretch:
    """Cut a measurement into blocks: by the time it has, or by its rounds where it will do them all before."""

    def __init__(self, blocks: int, rounds: int, deadline: Deadline) -> None:
        """Begin now; no block has fewer than two rounds."""
        self.blocks, self.rounds, self.deadline = max(1, min(blocks, rounds // 2)), rounds, deadline
        self.whole = deadline.left
        self._block, self._first = 0, 0

    def at(self, done: int) -> int:
        """Return the block of the round after `done` rounds."""
        share = done / self.rounds
        if math.isfinite(self.whole):
            share = max(share, 1 - self.deadline.left / self.whole if self.whole else 1.0)
        if done - self._first >= 2 and int(share * self.blocks) > self._block:
            self._block, self._first = min(self._block + 1, self.blocks - 1), done
        return self._block


def drawn(contenders: Sequence[Contender], seed: int, block: int, number: int) -> list[Contender]:
    """Return those still running in the order of round `number`: rotating, in an order drawn for the block.

    Whoever follows a long run finds the caches cold, so that nobody may always follow the same one.
    """
    order = random.Random(f"{seed}/{block}").sample(list(contenders), len(contenders))
    order = [item for item in order if item.failure is None]
    start = number % len(order) if order else 0
    return order[start:] + order[:start]


def fitting_tokens(wanted: int, warm_seconds: float, left: float) -> int:
    """Return how many tokens a prompt may get so that enough rounds fit into `left` seconds.

    `warm_seconds` is what one round of at most `WARM_UP_TOKENS` tokens took. `WANTED_ROUNDS` rounds go before longer
    texts down to `ADEQUATE_TOKENS`, then `MINIMUM_UNITS` rounds count. Never below `FEWEST_TOKENS`.
    """
    per_token = warm_seconds / min(WARM_UP_TOKENS, wanted)
    if per_token <= 0 or math.isinf(left):
        return wanted
    many, few = (int(left / (rounds * per_token)) for rounds in (WANTED_ROUNDS, MINIMUM_UNITS))
    return min(wanted, max(FEWEST_TOKENS, many, min(ADEQUATE_TOKENS, few)))


def _warm_up(contenders: Sequence[Contender], unit: Unit, max_new_tokens: int, device: torch.device) -> float:
    """Run every contender briefly, twice; return the seconds of the second time, when nothing is lazy any more."""
    seconds = 0.0
    for contender in contenders:
        try:
            if contender.failure is None:
                brief = min(WARM_UP_TOKENS, max_new_tokens)
                contender.run(unit.prompts, brief, 0, device)
                seconds += contender.run(unit.prompts, brief, 0, device).seconds
        except OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001  any failure of a contender is a row of the report, not its end
            contender.failure = one_line(error)
    return seconds


def _round(
    found: Measurements,
    contenders: Sequence[Contender],
    turn: Turn,
    max_new_tokens: int,
    device: torch.device,
) -> None:
    """Run each contender once on one unit."""
    unit = turn.unit
    for contender in contenders:
        try:
            seed = turn.seed + 1000 * turn.repeat + unit.index
            decoded = contender.run(unit.prompts, max_new_tokens, seed, device)
        except OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001
            contender.failure = one_line(error)
            found.drop([contender.name])
            continue
        record = Record(unit.index, unit.task, turn.repeat, decoded, turn.block)
        found.records.setdefault(contender.name, []).append(record)
        found.seconds += decoded.seconds
