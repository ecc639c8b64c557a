"""Test that a sampling strategy draws from the target's distribution: χ² against exact enumeration.

The support is made small on purpose (top-k 3, four tokens: at most 81 continuations), so that a few thousand draws
have power against every continuation, not only against a marginal. The seed is fixed: a run gives the same p again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssd_infer.evaluation.contenders import Decode, Prompts
from ssd_infer.evaluation.enumeration import Cells, enumerate_cells
from ssd_infer.evaluation.losslessness import LosslessResult, Verdict
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline

P_VALUE = 1e-4
"""Below this a row fails; a right sampler does so once in ten thousand tests."""
LENGTH, TOP_K, DRAWS, BATCH, FEWEST = 4, 3, 2400, 200, 400
SETTINGS = (Sampling(1.0, TOP_K, 1.0), Sampling(0.7, TOP_K, 0.9))


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """A χ² test: statistic, degrees of freedom, p, and draws outside the support (any is a failure)."""

    statistic: float
    freedom: int
    p_value: float
    outside: int


def chi_square(counts: Counter[tuple[int, ...]], cells: Cells, smallest: float = 5.0) -> ChiSquare:
    """Compare `counts` with `cells` (Pearson); cells expecting fewer than `smallest` draws are pooled into one."""
    draws = sum(counts.values())
    outside = sum(count for key, count in counts.items() if key not in cells)
    ordered = sorted(cells, key=lambda key: cells[key])
    observed, expected, pool = [], [], [0.0, 0.0]
    for key in ordered:
        if draws * cells[key] < smallest or 0 < pool[1] < smallest:
            pool = [pool[0] + counts[key], pool[1] + draws * cells[key]]
        else:
            observed.append(float(counts[key]))
            expected.append(draws * cells[key])
    if pool[1] > 0:
        observed.append(pool[0])
        expected.append(pool[1])
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in zip(observed, expected, strict=True))
    return _tested(statistic, max(len(expected) - 1, 0), outside)


def joined(tests: Sequence[ChiSquare]) -> ChiSquare:
    """Return one test of independent ones: statistics and degrees of freedom add up."""
    return _tested(
        sum(test.statistic for test in tests),
        sum(test.freedom for test in tests),
        sum(test.outside for test in tests),
    )


def _tested(statistic: float, freedom: int, outside: int) -> ChiSquare:
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    p_value = float(torch.special.gammaincc(half[0], half[1])) if freedom else 1.0
    return ChiSquare(statistic, freedom, 0.0 if outside else p_value, outside)


def pick_context(model: Any, prompts: Prompts, tokens: int = 6) -> list[int]:
    """Return the start of the prompt whose enumerated continuations have the most entropy, stated twice.

    Most entropy, because a certain continuation tests nothing; twice, so that lookup drafters find something to copy.
    """
    starts = [
        (prompt * 2)[:tokens] + prompt[: max(1, min(tokens, len(prompt)) - 3)] for prompt in prompts[:6]
    ]
    return max(starts, key=lambda start: _entropy(enumerate_cells(model, start, SETTINGS[0], 2)))


def _entropy(cells: Cells) -> float:
    probs = torch.tensor([p for p in cells.values() if p > 0], dtype=torch.float64)
    return float(-(probs * probs.log()).sum())


def judge_sampling(
    model: Any,
    decodes: Sequence[tuple[Sampling, Decode]],
    context: list[int],
    deadline: Deadline,
    seed: int = 0,
    draws: int = DRAWS,
    plain: bool = False,
) -> LosslessResult:
    """Draw from each decode function in ragged batches and test against the model itself; the worst p decides.

    Every batch holds the context and its later part in turns, each with a law of its own, so that a law that holds in
    even batches only is found. After `deadline` the first setting alone is tested, with the fewest draws. `plain` says
    that the strategy fell back to plain decoding, so that nothing drafted is no objection.
    """
    notes: list[str] = []
    extra, worst = [], 1.0
    starts = [context, context[len(context) // 3 :]]
    for sampling, decode in decodes:
        if notes and deadline.passed:
            notes.append(f"T={sampling.temperature:g}, top-k {sampling.top_k} not run for lack of time")
            break
        counted, drafted = _draw(decode, starts, draws, seed, deadline, plain)
        if not drafted and not plain:
            return LosslessResult("not_run", "sampling: nothing was drafted on the enumerated context")
        made = sum(map(Counter.total, counted))
        if made < FEWEST:
            reason = f"sampling: {made} draws are too few to compare with exact enumeration"
            return LosslessResult("not_run", reason)
        test = joined(
            [
                chi_square(counts, enumerate_cells(model, start, sampling, LENGTH))
                for counts, start in zip(counted, starts, strict=True)
            ]
        )
        worst = min(worst, test.p_value)
        name = f"T={sampling.temperature:g}, top-k {sampling.top_k}" + (
            f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else ""
        )
        notes.append(
            f"{name}: χ²={test.statistic:.1f} on {test.freedom}, p={test.p_value:.3g}, n={made}"
            + (f", {test.outside} draws impossible" if test.outside else "")
        )
        extra.append({"sampling": name, "p_value": test.p_value, "draws": made, "drafted": drafted})
    verdict: Verdict = "pass" if worst >= P_VALUE else "fail"
    return LosslessResult(
        verdict,
        f"sampling: first {LENGTH} tokens in ragged batches against exact enumeration; " + "; ".join(notes),
        {"tests": extra},
    )


def _draw(
    decode: Decode,
    starts: Sequence[list[int]],
    draws: int,
    seed: int,
    deadline: Deadline,
    plain: bool,
) -> tuple[list[Counter[tuple[int, ...]]], int]:
    """Return counts of the continuations drawn of each start, and how many tokens were drafted on the way.

    Gives up after one batch in which a strategy that should draft (not `plain`) drafted nothing.
    """
    counted: list[Counter[tuple[int, ...]]] = [Counter() for _ in starts]
    drafted, done = 0, 0
    while done < draws and not (deadline.passed and done >= FEWEST):
        rows = min(BATCH, draws - done)
        owners = [row % len(starts) for row in range(rows)]
        tokens, stats = decode([starts[owner] for owner in owners], LENGTH, seed + 7919 * (done + 1))
        for owner, row in zip(owners, tokens, strict=True):
            counted[owner][tuple(row)] += 1
        drafted += stats.total.drafted if stats is not None else 0
        done += rows
        if not drafted and not plain:
            break
    return counted, drafted
