"""Bootstrap, repetition, cost model, budget: the arithmetic of a report."""

from __future__ import annotations

import pytest

from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.bootstrap import Totals, speed_ratio
from ssd_infer.evaluation.budget import Budget
from ssd_infer.evaluation.cost_model import Cost, Counted, measured_cost, predicted_speedup
from ssd_infer.evaluation.repetition import distinct_n, longest_repeat, repetition


def test_ratio_is_of_totals_not_a_mean_of_ratios() -> None:
    ours = [Totals(100, 1.0), Totals(100, 3.0)]
    theirs = [Totals(100, 2.0), Totals(100, 4.0)]
    assert speed_ratio(ours, theirs).value == pytest.approx(6 / 4)


def test_interval_covers_and_narrows() -> None:
    few = [(Totals(100, 1.0 + 0.2 * (i % 3)), Totals(100, 2.0 + 0.3 * (i % 2))) for i in range(6)]
    narrow = speed_ratio([a for a, _ in few * 20], [b for _, b in few * 20]).ci95
    wide = speed_ratio([a for a, _ in few], [b for _, b in few])
    assert wide.ci95 is not None
    assert narrow is not None
    assert wide.ci95[0] < wide.value < wide.ci95[1]
    assert narrow[1] - narrow[0] < 0.5 * (wide.ci95[1] - wide.ci95[0])
    assert speed_ratio([a for a, _ in few], [b for _, b in few]) == wide


def test_constant_ratio_has_no_width() -> None:
    ratio = speed_ratio(
        [Totals(10, t) for t in (1.0, 2.0, 3.0)], [Totals(10, 2 * t) for t in (1.0, 2.0, 3.0)]
    )
    assert ratio.value == pytest.approx(2.0)
    assert ratio.ci95 == pytest.approx([2.0, 2.0])


def test_one_prompt_has_no_interval_and_unequal_lists_are_refused() -> None:
    assert speed_ratio([Totals(1, 1.0)], [Totals(1, 1.0)]).ci95 is None
    with pytest.raises(ValueError, match="differ in number: 2 and 1"):
        speed_ratio([Totals(1, 1.0)] * 2, [Totals(1, 1.0)])
    with pytest.raises(ValueError, match="nothing"):
        speed_ratio([], [])


def test_token_counts_enter_the_ratio() -> None:
    assert speed_ratio([Totals(50, 1.0)], [Totals(100, 1.0)]).value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [([1, 2, 3, 4], 1, 1.0), ([1, 1, 1, 1], 1, 0.25), ([1, 2, 1, 2, 1], 2, 0.5), ([1], 3, 1.0)],
)
def test_distinct(tokens: list[int], n: int, share: float) -> None:
    assert distinct_n(tokens, n) == share


@pytest.mark.parametrize(
    ("tokens", "length"),
    [([1, 2, 3], 0), ([1, 2, 3, 1, 2], 2), ([7] * 5, 4), ([], 0), ([1, 2, 9, 1, 2, 3, 8, 1, 2, 3], 3)],
)
def test_longest_repeat(tokens: list[int], length: int) -> None:
    assert longest_repeat(tokens) == length


def test_repetition_averages_outputs() -> None:
    found = repetition([[1, 2, 3, 4], [1, 1, 1, 1]])
    assert found["distinct_1"] == pytest.approx(0.625)
    assert found["longest_repeat"] == 3
    assert repetition([])["distinct_3"] == 0.0


def stats_of(
    rounds: int, drafted: int, accepted: int, draft_forwards: int, draft_seconds: float, verify_seconds: float
) -> Stats:
    stats = Stats.empty(1)
    for turn in range(rounds):
        stats.rows[0].count(drafted // rounds, accepted // rounds, 1 + accepted // rounds)
        del turn
    stats.finish()
    stats.total.forwards = {"target": rounds + 1, "draft": draft_forwards}
    stats.total.seconds = {"prefill": 1.0, "draft": draft_seconds, "verify": verify_seconds}
    return stats


def counted(*parts: Stats) -> Counted:
    found = Counted()
    for part in parts:
        found.add(part)
    return found


def test_costs_are_relative_to_a_plain_step_and_explain_the_speedup() -> None:
    plain = counted(stats_of(10, 0, 0, 0, 0.0, 10.0))
    drafted = counted(stats_of(5, 15, 10, 15, 3.0, 6.0), stats_of(5, 15, 10, 15, 3.0, 6.0))
    cost = measured_cost(drafted, plain)
    assert (drafted.passes, drafted.total.forwards["draft"]) == (10, 30)
    assert cost == Cost(pytest.approx(0.2), pytest.approx(1.2), pytest.approx(3.0))
    assert cost.predicted(drafted.total) == pytest.approx((1 + 2) / (3 * 0.2 + 1.2))


def test_cost_is_unknown_without_a_plain_step_or_drafts() -> None:
    assert measured_cost(counted(stats_of(5, 15, 10, 15, 3.0, 6.0)), Counted()) == Cost()
    plain = counted(stats_of(10, 0, 0, 0, 0.0, 10.0))
    assert measured_cost(plain, plain).predicted(plain.total) is None


def test_prediction_formula() -> None:
    assert predicted_speedup(3 * 0.5, 3, 0.1, 1.2) == pytest.approx(2.5 / 1.5)


def test_budget_shares_pass_in_order_and_zero_is_no_limit() -> None:
    now = [100.0]
    budget = Budget(1.0, lambda: now[0])
    early, late = budget.deadline(0.25), budget.deadline(1.0)
    assert not early.passed
    now[0] = 115.0
    assert early.passed
    assert not late.passed
    assert budget.spent == 15.0
    assert not Budget(0.0, lambda: 1e12).deadline(0.01).passed
