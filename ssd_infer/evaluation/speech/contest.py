"""Time every decoder on the same utterances: whole recognitions, features and encoder included, interleaved."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ssd_infer.engine.clock import synchronise
from ssd_infer.evaluation.bootstrap import Ratio, Totals, speed_ratio
from ssd_infer.evaluation.contenders import one_line
from ssd_infer.families.speech.result import Decoded
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.recognise import batches, recognise
from ssd_infer.tuning.budget import Deadline

WARM_UPS = 3
FEWEST_ROUNDS = 2


@dataclass(slots=True)
class Contender:
    """A named way to decode; `method` None is plain decoding."""

    name: str
    kind: str
    method: str | None
    params: CTCDraftParams | None = None
    note: str = ""
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """Utterances of one set that are decoded together."""

    index: int
    task: str
    items: list[Utterance]
    places: list[int]
    """Their places in the set."""

    def milliseconds(self, rate: int) -> int:
        """Return the length of the audio."""
        return round(1000 * sum(len(item.samples) for item in self.items) / rate)


@dataclass(frozen=True, slots=True)
class Run:
    """One timed recognition: wall-clock and processor seconds."""

    unit: Unit
    repeat: int
    wall: float
    cpu: float
    decoded: Decoded


@dataclass(slots=True)
class Benchmark:
    """All runs at one batch size, by contender; every contender still running has the same (unit, repeat) pairs."""

    size: int
    rate: int
    runs: dict[str, list[Run]] = field(default_factory=dict)
    done: int = 0
    planned: int = 0

    def totals(self, name: str, clock: str = "wall", task: str | None = None) -> list[Totals]:
        """Return milliseconds of audio and seconds of each unit, summed over repeats; ratios then compare RTFx."""
        sums: dict[int, list[float]] = {}
        for run in self.runs[name]:
            if task in (None, run.unit.task):
                entry = sums.setdefault(run.unit.index, [0, 0.0])
                entry[0] += run.unit.milliseconds(self.rate)
                entry[1] += getattr(run, clock)
        return [Totals(int(sums[unit][0]), sums[unit][1]) for unit in sorted(sums)]

    def ratio(
        self, name: str, against: str, seed: int, clock: str = "wall", task: str | None = None
    ) -> Ratio:
        """Return how many times as fast `name` is, the same audio on both sides."""
        return speed_ratio(self.totals(name, clock, task), self.totals(against, clock, task), seed)

    def rtfx(self, name: str, task: str | None = None) -> float:
        """Return seconds of audio recognised a second."""
        totals = self.totals(name, "wall", task)
        return sum(part.tokens for part in totals) / 1000 / sum(part.seconds for part in totals)

    def tasks(self) -> list[str]:
        """Return the sets in order."""
        return list(dict.fromkeys(run.unit.task for runs in self.runs.values() for run in runs))


def cut_units(sets: dict[str, list[Utterance]], size: int) -> list[Unit]:
    """Cut every set into batches of like length and take turns between sets, so that an early stop is balanced."""
    queues = []
    for name, items in sets.items():
        cut = batches([len(item.samples) for item in items], size)
        queues.append([(name, [items[place] for place in batch], batch) for batch in cut])
    longest = max(map(len, queues))
    ordered = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return [Unit(index, *parts) for index, parts in enumerate(ordered)]


def hold(
    model: Any,
    processor: Any,
    contenders: Sequence[Contender],
    units: Sequence[Unit],
    size: int,
    repeats: int,
    deadline: Deadline,
) -> Benchmark:
    """Run every contender on every unit `repeats` times; whoever raises drops out with the reason.

    Stops after a complete round once `deadline` has passed, so what is there stays paired.
    """
    found = Benchmark(size, int(processor.sampling_rate), planned=repeats * len(units))
    stage = Stage(model, processor)
    for contender in contenders:
        for unit in units[:WARM_UPS]:
            stage.run(contender, unit, 0)
    for repeat in range(repeats):
        for unit in units:
            if deadline.passed and found.done >= FEWEST_ROUNDS:
                return found
            for contender in drawn([item for item in contenders if item.failure is None], found.done):
                made = stage.run(contender, unit, repeat)
                if made is None:
                    found.runs.pop(contender.name, None)
                else:
                    found.runs.setdefault(contender.name, []).append(made)
            found.done += 1
    return found


def drawn(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Return `contenders` in the order of round `number`, another in each.

    Whoever follows a long run finds the caches cold (measured: a tenth of a short recognition), so nobody may always
    follow the same one, as in a rotation.
    """
    return random.Random(number).sample(contenders, len(contenders))


@dataclass(frozen=True, slots=True)
class Stage:
    """Where contenders run."""

    model: Any
    processor: Any

    def run(self, contender: Contender, unit: Unit, repeat: int) -> Run | None:
        """Recognise and time one unit, devices synchronised at both ends; None when the contender fails or has."""
        if contender.failure is not None:
            return None
        waves, device = [item.samples for item in unit.items], self.model.device
        try:
            synchronise(device)
            wall, cpu = time.perf_counter(), time.process_time()
            decoded, _ = recognise(self.model, self.processor, waves, contender.method, contender.params)
            synchronise(device)
            return Run(unit, repeat, time.perf_counter() - wall, time.process_time() - cpu, decoded)
        except Exception as error:  # noqa: BLE001  any failure of a contender is a row of the report, not its end
            contender.failure = one_line(error)
            return None
