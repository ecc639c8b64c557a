"""Test exactness where timed runs do not look: at batch 1 and in a ragged batch, at several budgets, with end marks.

A mistake in what a draft cuts, pads or forgets shows only where rows of one batch stand at different places, or where
a budget ends inside a drafted block. So short decodings of few rows, all of them compared token by token, go through
such places on purpose. Which decodings those are, and what they must equal, is each kind of model's own affair.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ssd_infer.evaluation.contenders import Prompts, one_line
from ssd_infer.evaluation.losslessness import LosslessResult, Verdict, first_divergence
from ssd_infer.tuning.budget import Budget, Deadline

ROWS, LONGEST_PROMPT, LONGEST_OUTPUT = 4, 64, 24
SHARE = 0.05
"""Share of the time limit that these decodings may take at one sampling setting."""
MOST_SECONDS = 60.0
"""Seconds they may take where there is no limit."""
QUARTERS = (2, 4, 1, 3)
"""Length of each row of the ragged batch in quarters of the longest: no two alike, and neither end in order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One decoding: which rows together, how many tokens each at most, and which tokens end a row."""

    rows: tuple[int, ...]
    budget: int
    ends: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the case in words."""
        marks = ", ".join(map(str, self.ends))
        return f"batch {len(self.rows)}, budget {self.budget}, " + (
            f"end mark {marks}" if self.ends else "no end mark"
        )


Rows = list[list[int]]
Expected = Callable[[Case], Mapping[str, Sequence["Known"]]]
"""Case → name of a reference → what it says of each row."""
Excuse = Callable[[Case, int, list[int]], bool]
"""(case, row, output) → whether the output differs from its reference by rounding only."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a reference says of one row: all of its output, or only how it begins."""

    tokens: list[int]
    whole: bool = True

    def divergence(self, output: list[int]) -> int | None:
        """Return where `output` first differs; None where it does not."""
        return first_divergence(output if self.whole else output[: len(self.tokens)], self.tokens)


@dataclass(slots=True)
class Check:
    """The comparison of one strategy: its cases, how to decode one, and what was found."""

    decode: Callable[[Case], Rows]
    cases: list[Case]
    done: list[Case] = field(default_factory=list)
    left_out: list[Case] = field(default_factory=list)
    rows: int = 0
    excused: int = 0
    broken: list[str] = field(default_factory=list)
    against: dict[str, None] = field(default_factory=dict)
    failure: str | None = None
    pace: float = 0.0
    """Most seconds that one token of a budget has taken."""

    def run(self, case: Case, expected: Expected, excuse: Excuse, deadline: Deadline) -> None:
        """Decode one case and compare it; left out once the time is over or would be before its end."""
        if self.failure is not None:
            return
        if deadline.passed or self.pace * case.budget > deadline.left:
            self.left_out.append(case)
            return
        start = time.perf_counter()
        try:
            self._compare(case, self.decode(case), expected(case), excuse)
        except Exception as error:  # noqa: BLE001  the row fails, the report goes on
            self.failure = f"{case.name}: {one_line(error)}"
        self.pace = max(self.pace, (time.perf_counter() - start) / case.budget)

    def _compare(
        self, case: Case, found: Rows, expected: Mapping[str, Sequence[Known]], excuse: Excuse
    ) -> None:
        self.done.append(case)
        self.against |= dict.fromkeys(expected)
        for place, (row, output) in enumerate(zip(case.rows, found, strict=True)):
            self.rows += 1
            places = {name: known[place].divergence(output) for name, known in expected.items()}
            first = min((at for at in places.values() if at is not None), default=None)
            if first is None:
                continue
            if excuse(case, row, output):
                self.excused += 1
                continue
            name = next(name for name, at in places.items() if at == first)
            self.broken.append(f"{case.name}: row {place} differs from {name}, first at token {first}")

    def result(self) -> LosslessResult:
        """Return the verdict, and what was compared with what."""
        verdict: Verdict = "fail" if self.broken or self.failure else "pass" if self.done else "not_run"
        parts = [self._said()] if self.done else []
        if self.excused:
            parts.append(f"{self.excused} outputs differ only where the target's logits tie within rounding")
        if self.broken:
            parts.append(f"{len(self.broken)} outputs differ: {self.broken[0]}")
        if self.failure:
            parts.append(f"failed in {self.failure}")
        if self.left_out:
            parts.append(f"not run for lack of time: {_names(self.left_out)}")
        return LosslessResult(verdict, "; ".join(parts), {"batches": self._facts()})

    def _said(self) -> str:
        budgets = spans({case.budget for case in self.done})
        batches = " and ".join(map(str, sorted({len(case.rows) for case in self.done})))
        marks = {bool(case.ends) for case in self.done}
        ends = (
            "with and without end marks"
            if len(marks) > 1
            else f"{'with' if True in marks else 'without'} end marks"
        )
        return (
            f"{len(self.done)} decodings at batch {batches} (ragged), budgets {budgets}, {ends}, compared with "
            f"{' and '.join(self.against)}"
        )

    def _facts(self) -> dict[str, object]:
        return {
            "decodings": len(self.done),
            "outputs": self.rows,
            "equal": self.rows - self.excused - len(self.broken),
            "excused": self.excused,
            "batch_sizes": sorted({len(case.rows) for case in self.done}),
            "budgets": sorted({case.budget for case in self.done}),
            "against": list(self.against),
            "first_difference": self.broken[0] if self.broken else None,
            "left_out": [case.name for case in self.left_out],
        }


def batch_deadline(budget: Budget) -> Deadline:
    """Return the moment by which decodings that begin now must be done."""
    if math.isinf(budget.seconds):
        return Deadline(time.monotonic() + MOST_SECONDS)
    return budget.deadline(min(1.0, budget.spent / budget.seconds + SHARE))


def run_checks(
    checks: Mapping[str, Check], expected: Expected, excuse: Excuse, deadline: Deadline
) -> dict[str, LosslessResult]:
    """Run all checks, taking turns, so that time that is too short is short for all alike; cheap cases come first."""
    turns = max((len(check.cases) for check in checks.values()), default=0)
    for turn in range(turns):
        for check in checks.values():
            if turn < len(check.cases):
                check.run(check.cases[turn], expected, excuse, deadline)
    return {name: check.result() for name, check in checks.items()}


def ragged_prompts(prompts: Prompts) -> Prompts:
    """Return `ROWS` prompts of different lengths cut from the measured ones; short ones are repeated to the length."""
    longest = max(len(QUARTERS), min(LONGEST_PROMPT, max(map(len, prompts))))
    sources = [prompts[index * len(prompts) // ROWS] for index in range(ROWS)]
    return [
        (source * longest)[: longest * quarter // 4]
        for source, quarter in zip(sources, QUARTERS, strict=True)
    ]


def plan(budgets: Sequence[int], ends: Sequence[tuple[int, ...]], more: Sequence[int] = ()) -> list[Case]:
    """Return the cases, cheapest first: every budget in the ragged batch and alone, the longest with each end mark.

    Alone goes another row each time. The budgets `more` follow, in the ragged batch, for where time allows.
    """
    marked = [(max(budgets), mark) for mark in ends if mark]
    wanted = [(budget, ()) for budget in sorted(set(budgets))] + marked
    cases, together = [], tuple(range(ROWS))
    for turn, (budget, mark) in enumerate(wanted):
        cases += [Case(together, budget, mark), Case((turn % ROWS,), budget, mark)]
    return cases + [Case(together, budget) for budget in sorted(set(more) - set(budgets))]


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in words, neighbours as a span: `1, 4 to 9 and 24`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [
        str(run[0]) if len(run) == 1 else f"{run[0]}{' to ' if len(run) > 2 else ', '}{run[-1]}"
        for run in runs
    ]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _names(cases: Sequence[Case]) -> str:
    """Return cases in words, those that differ by budget alone together."""
    groups: dict[str, list[int]] = {}
    for case in cases:
        groups.setdefault(case.name.replace(f", budget {case.budget},", ",", 1), []).append(case.budget)
    return "; ".join(f"{name}, budget {spans(found)}" for name, found in groups.items())
