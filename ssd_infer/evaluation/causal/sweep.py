"""How cost grows: every draft that was asked for beside plain decoding, at every batch and context asked for.

Rows are prefilled once a context; parameters are settled anew at each, and what is measured for that is forgotten
afterwards, so that the sweep changes no other part of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ssd_infer.corpus import build_tasks
from ssd_infer.engine.prefilled import ROOM, FilledRow, prefill
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, DataError, one_line
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.causal.sweep_cell import Cells, measured
from ssd_infer.evaluation.strategies import is_wanted, known_drafts
from ssd_infer.evaluation.studies import Asked, Findings, Round
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping
from ssd_infer.tuning.memo import apart

TASK = "long_continuation"
KEY = "sweep"
"""Where rows carry what was found, under `extra`: `cells`, or a `reason` why there are none."""
DISTINCT = 4
"""Most different prompts; larger batches repeat them."""


def sweep(bench: EvalContext, deadline: Deadline, search_seconds: float) -> Findings:
    """Return the cells of every draft that was asked for; output that changed is a fault of its row.

    Cells that the deadline leaves no time for, or that fail, become a warning.
    """
    found = Findings()
    asked = _asked(bench)
    reason = _impossible(bench) if asked else None
    if reason is not None:
        bench.notes.append(f"contexts: no sweep was made: {reason}")
    able = []
    for one in asked:
        why = reason or _inapplicable(bench, one)
        if why is not None:
            found.learn(one.row, KEY, {"reason": why})
        else:
            able.append(one)
    if able:
        _Sweep(bench, able, deadline, search_seconds, found).run()
    return found


def _asked(bench: EvalContext) -> list[Asked]:
    wanted = bench.settings.draft
    return [
        Asked(row, info)
        for row, info in known_drafts(wanted).items()
        if info.kind == "causal" and is_wanted(wanted, info)
    ]


def _impossible(bench: EvalContext) -> str | None:
    if isinstance(bench.target, str):
        return bench.target
    if bench.tokenizer is None:
        return "it needs prompts of any length, and this checkpoint has no tokenizer to cut them with"
    return None


def _inapplicable(bench: EvalContext, one: Asked) -> str | None:
    assert isinstance(bench.target, Target)
    return drafts.get(one.info.name).unsupported_reason(bench.target)


def fault_of(row: str, cells: Sequence[dict[str, Any]]) -> str | None:
    """Say which cells of a row changed the output it promises to leave alone, if any did."""
    wrong = [
        f"batch {cell['batch']} at {cell['context']} tokens of context"
        for cell in cells
        if cell["name"] == row and cell["verdict"] == "fail" and cell["claimed"]
    ]
    return f"the output of the sweep of contexts (greedy) changed: {', '.join(wrong)}" if wrong else None


@dataclass(slots=True)
class _Sweep:
    bench: EvalContext
    asked: list[Asked]
    deadline: Deadline
    search_seconds: float
    found: Findings
    rows: list[FilledRow] = field(default_factory=list)
    """Prefilled at the longest context so far."""
    cells: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        """Measure from the shortest context and the smallest batch on, then let strategies use the longest rows."""
        for length in sorted(set(self.bench.settings.contexts)):
            with apart():
                self._context(length)
        for one in self.asked:
            own = [cell for cell in self.cells if cell["name"] not in self._others(one.row)]
            self.found.learn(one.row, KEY, {"cells": own})
            fault = fault_of(one.row, own)
            if fault is not None:
                self.found.faults[one.row] = fault
        if self.rows and not self.deadline.passed:
            with apart():
                self._studies()

    def _others(self, row: str) -> set[str]:
        return {one.row for one in self.asked} - {row}

    def _context(self, length: int) -> None:
        bench, batches = self.bench, sorted(set(self.bench.settings.batches))
        assert isinstance(bench.target, Target)
        unfit = bench.target.unfit_reason([length], 2 * bench.settings.max_new_tokens + ROOM)
        if unfit is not None:
            bench.notes.append(f"contexts: {length} tokens of context were left out: {unfit}")
            return
        filled = self._tried(f"prefilling {length} tokens of context", partial(self._filled, length))
        self.rows = filled or self.rows
        for batch in batches if filled else ():
            where = f"batch {batch} at {length} tokens of context"
            cells = Cells(bench, self.asked, self.deadline, self.search_seconds, where)
            self.cells += self._tried(f"the sweep at {where}", partial(self._cell, cells, filled, batch))

    def _filled(self, length: int) -> list[FilledRow]:
        settings, target = self.bench.settings, self.bench.target
        assert isinstance(target, Target)
        self.bench.say(f"prefilling {length} tokens of context")
        count = min(DISTINCT, max(settings.batches))
        task = build_tasks([TASK], self.bench.tokenizer, count, length, settings.seed)[0]
        with stopping(self.bench.model, self.deadline):
            return [prefill(target, prompt) for prompt in task.prompts]

    def _cell(self, cells: Cells, filled: list[FilledRow], batch: int) -> list[dict[str, Any]]:
        if self.deadline.passed:
            raise OutOfTime
        self.bench.say(f"decoding {cells.where}")
        return measured(cells, filled, batch)

    def _studies(self) -> None:
        more = Round(self.bench, "prefilled", Sampling(), self.deadline, self.deadline, filled=self.rows)
        studied = more.run(self.asked)
        for row, facts in studied.facts.items():
            for key, value in facts.items():
                self.found.learn(row, key, value)
        self.found.faults |= studied.faults

    def _tried(self, what: str, measure: Callable[[], list[Any]]) -> list[Any]:
        """Return what `measure` returns; if it fails, nothing and a warning: a sweep must cost no report its rows."""
        try:
            return measure()
        except (ConfigError, DataError):
            raise
        except OutOfTime:
            self.bench.notes.append(f"the time limit left out {what}")
            return []
        except Exception as error:  # noqa: BLE001
            self.bench.notes.append(f"{what} failed: {one_line(error)}")
            return []
