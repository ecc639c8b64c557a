"""Run what strategies study of themselves, each within its share of the time limit; one that fails costs no row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ssd_infer.engine.prefilled import FilledRow
from ssd_infer.errors import ConfigError, DataError, one_line
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, ours
from ssd_infer.evaluation.measure import Unit, measure
from ssd_infer.evaluation.strategies import is_wanted, known_drafts
from ssd_infer.evaluation.summary import scoreboard
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.info import StrategyInfo
from ssd_infer.strategies.study import Facts, Sampling, Study, StudyContext, Trial, When
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping

BEFORE: tuple[When, ...] = ("start", "contexts", "prefilled")
"""Moments before anything was timed that a wrong request would lose."""


@dataclass(slots=True)
class Findings:
    """What studies found, by name of the row it belongs to."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Row → key of `extra` → facts."""
    faults: dict[str, str] = field(default_factory=dict)
    """Row → how its output broke what it promises."""

    def learn(self, row: str, key: str, facts: Facts) -> None:
        """Add facts to what is known of a row under `key`."""
        known = self.facts.setdefault(row, {})
        known[key] = {**known.get(key, {}), **facts}

    def attach(self, row: dict[str, Any]) -> None:
        """Add what was found to a row of a report; output that changed fails the row and the run."""
        row["extra"] |= self.facts.get(row["name"], {})
        fault = self.faults.get(row["name"])
        if fault is not None:
            row["lossless"] = {**row["lossless"], "verdict": "fail", "detail": fault}
            if row["status"] == "not_applicable":  # a run without greedy decoding has no other row to fail
                row["status"], row["reason"] = "failed", fault


@dataclass(frozen=True, slots=True)
class Asked:
    """A strategy's row that may be studied, and the parameters it was timed with."""

    row: str
    info: StrategyInfo
    params: dict[str, Any] | None = None


def listed_rows(bench: EvalContext, sampling: Sampling) -> list[Asked]:
    """Return a row for every strategy of causal models that the report names, whether it takes part or not."""
    known = known_drafts(bench.settings.draft).values()
    return [Asked(info.row + sampling.suffix, info) for info in known if info.kind == "causal"]


def timed_rows(contenders: Sequence[Contender]) -> list[Asked]:
    """Return the rows of strategies that draft."""
    return [
        Asked(item.name, drafts.get(item.draft).info, item.params)
        for item in contenders
        if item.kind == "strategy" and item.draft is not None and not item.plain and item.failure is None
    ]


@dataclass(frozen=True, slots=True)
class Round:
    """One moment of an evaluation at which strategies may study."""

    bench: EvalContext
    when: When
    sampling: Sampling
    deadline: Deadline
    calibrated: Deadline
    new_tokens: int = 0
    filled: Sequence[FilledRow] = ()

    def studies(self, asked: Sequence[Asked]) -> list[tuple[Asked, Study]]:
        """Return what the strategies of these rows want to study now."""
        found = []
        for one in asked:
            try:
                studies = drafts.reported(one.info.name).studies(self._context(one, self.deadline))
            except Exception as error:  # noqa: BLE001  a study must not cost the report its rows
                self.bench.notes.append(f"{one.row}: its studies failed: {one_line(error)}")
                continue
            found += [(one, study) for study in studies if study.when == self.when]
        return found

    def run(self, asked: Sequence[Asked]) -> Findings:
        """Run them one after another, each with an even share of the time that is left."""
        found, waiting = Findings(), self.studies(asked)
        for place, (one, study) in enumerate(waiting):
            self._run(one, study, self.deadline.part(1 / (len(waiting) - place)), found)
        return found

    def _run(self, one: Asked, study: Study, deadline: Deadline, found: Findings) -> None:
        """Run one study; one that fails is a warning.

        What is wrong with the request itself is raised as long as nothing was timed that would be lost.
        """
        try:
            facts = study.run(self._context(one, deadline))
            fault = study.fault(facts)
        except Exception as error:
            if isinstance(error, (ConfigError, DataError)) and self.when in BEFORE:
                raise
            self.bench.notes.append(f"{one.row}: {study.key} failed: {one_line(error)}")
            return
        if facts:
            found.learn(one.row, study.key, facts)
        if fault is not None:
            found.faults[one.row] = fault

    def _context(self, one: Asked, deadline: Deadline) -> StudyContext:
        bench = self.bench
        return StudyContext(
            settings=bench.settings,
            target=bench.target,
            tokenizer=bench.tokenizer,
            wanted=is_wanted(bench.settings.draft, one.info),
            calibration=bench.calibration,
            prompts=[row for unit in bench.units for row in unit.prompts],
            streams=bench.shift,
            deadline=deadline,
            calibrated=self.calibrated,
            say=bench.say,
            time_trials=Stopwatch(bench),
            sampling=self.sampling,
            params=one.params,
            new_tokens=self.new_tokens,
            notes=bench.notes,
            model=bench.model,
            filled=self.filled,
        )


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times what a study wants timed as the real run does: interleaved with our plain loop, on calibration prompts."""

    bench: EvalContext

    def __call__(self, trials: Sequence[Trial], new_tokens: int, deadline: Deadline) -> list[float | None]:
        """Return greedy speedups over plain decoding; none where `deadline` comes before all decoded two prompts."""
        bench, greedy = self.bench, Sampling()
        plain = Contender("ssd_plain", "baseline", ours(bench.model, None, {}, greedy))
        mine = [
            Contender(str(place), "strategy", ours(bench.model, trial.draft, trial.params, greedy))
            for place, trial in enumerate(trials)
        ]
        units = [Unit(index, "calibration", [prompt]) for index, prompt in enumerate(bench.calibration)]
        try:
            with stopping(bench.model, deadline):
                found = measure(
                    [plain, *mine], units, 1, new_tokens, 0, bench.device, deadline.part(0.9), blocks=1
                )
        except OutOfTime:
            return []
        board = scoreboard(found, [plain, *mine], greedy, 0)
        if board is None:
            return []
        return [None if item.failure is not None else board.ratio(item.name).value for item in mine]
