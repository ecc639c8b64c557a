"""Bootstrap, repetition, cost model, budget: the arithmetic of a report."""

from __future__ import annotations

import random

import pytest
import torch

from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.bootstrap import Totals, small_sample_factor, speed_ratio
from ssd_infer.evaluation.cost_model import Cost, Counted, measured_cost, predicted_speedup
from ssd_infer.evaluation.repetition import distinct_n, longest_repeat, repetition
from ssd_infer.tuning.budget import Budget, OutOfTime, deal, stopping
from tests.conftest import build_model


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


@pytest.mark.parametrize("greedy", [[True, False], [True], [False], [True, False, False]])
@pytest.mark.parametrize(("contexts", "streams"), [(False, False), (True, False), (True, True)])
def test_at_least_sixty_percent_of_the_limit_go_to_measuring(
    greedy: list[bool], contexts: bool, streams: bool
) -> None:
    ends = deal(greedy, contexts, streams)
    begins = [0.0, *list(ends.values())[:-1]]
    shares = {name: end - begin for (name, end), begin in zip(ends.items(), begins, strict=True)}
    assert min(shares.values()) >= 0
    measuring = sum(
        share for name, share in shares.items() if name.split()[0] in ("measure", "contexts", "streams")
    )
    assert measuring >= 0.6
    assert max(ends.values()) <= 0.97 + 1e-9
    assert [name for name in shares if name.startswith("law") and shares[name] > 1e-9] == [
        f"law {number}" for number, plain in enumerate(greedy) if not plain
    ]


def test_a_part_of_a_deadline_is_cut_from_what_is_left() -> None:
    now = [0.0]
    deadline = Budget(1.0, lambda: now[0]).deadline(1.0)
    now[0] = 20.0
    assert deadline.part(0.25).left == pytest.approx(10.0)
    assert Budget(0.0).deadline(1.0).part(0.1).left == float("inf")


def test_a_phase_that_knows_no_clock_is_stopped_at_its_moment() -> None:
    now, passes = [0.0], 0
    deadline = Budget(1.0, lambda: now[0]).deadline(0.5)
    model = build_model(layers=2)
    before = dict(model.get_input_embeddings()._forward_pre_hooks)

    def calibrate() -> None:
        nonlocal passes
        while True:
            model(input_ids=torch.tensor([[5, 6]]))
            passes, now[0] = passes + 1, now[0] + 7.0

    with pytest.raises(OutOfTime), stopping(model, deadline):
        calibrate()
    assert passes == 5
    assert dict(model.get_input_embeddings()._forward_pre_hooks) == before


def test_a_ratio_of_totals_takes_its_interval_over_blocks_too() -> None:
    units = [(block, prompt) for block in range(5) for prompt in range(8 * block, 8 * block + 8)]
    theirs = [Totals(100, 2.0, prompt, block) for block, prompt in units]
    shifted = [Totals(100, 1.0 + 0.1 * block, prompt, block) for block, prompt in units]
    blind = speed_ratio([Totals(100, part.seconds, part.prompt) for part in shifted], theirs).ci95
    seeing = speed_ratio(shifted, theirs).ci95
    assert blind is not None
    assert seeing is not None
    assert seeing[1] - seeing[0] > 2 * (blind[1] - blind[0])
    assert seeing == speed_ratio(shifted, theirs).ci95


@pytest.mark.parametrize("count", [2, 3, 4, 6, 11, 31])
def test_few_prompts_widen_an_interval_as_student_says(count: int) -> None:
    t_table = {2: 12.706, 3: 4.303, 4: 3.182, 6: 2.571, 11: 2.228, 31: 2.042}
    wanted = t_table[count] / 1.96 * (count / (count - 1)) ** 0.5
    assert small_sample_factor(count) == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_few_prompts_on_a_loaded_machine_prove_nothing(count: int) -> None:
    """Two contenders that are the same, on a machine whose calls take 1 to 2 seconds by chance."""
    numbers, claims = random.Random(7), 0
    for _ in range(200):
        pairs = [(numbers.uniform(1.0, 2.0), numbers.uniform(1.0, 2.0)) for _ in range(count)]
        ours, theirs = (
            [Totals(48, pair[side], place) for place, pair in enumerate(pairs)] for side in (0, 1)
        )
        ci95 = speed_ratio(ours, theirs).ci95
        assert ci95 is not None
        claims += ci95[0] > 1.0
    assert claims / 200 <= 0.06


def test_a_prompt_repeated_in_other_blocks_is_still_one_prompt() -> None:
    units = [(block, prompt) for block in range(5) for prompt in range(4)]
    theirs = [Totals(100, 2.0, prompt, block) for block, prompt in units]
    ours = [Totals(100, 1.0 + 0.2 * prompt, prompt, block) for block, prompt in units]
    apart = [Totals(100, part.seconds, index, part.block) for index, part in enumerate(ours)]
    repeated, separate = speed_ratio(ours, theirs).ci95, speed_ratio(apart, theirs).ci95
    assert repeated is not None
    assert separate is not None
    assert repeated[1] - repeated[0] > 1.5 * (separate[1] - separate[0])
    once = [Totals(100, 1.0, 3, block) for block in range(5)]
    assert speed_ratio(once, once).ci95 is None


def test_the_interval_of_five_measurements_holds_the_others() -> None:
    """Runs of one checkpoint whose speed wanders by 3 % from stretch to stretch and run to run."""
    held = tried = 0
    for study in range(20):
        numbers = random.Random(study)
        found = []
        for _ in range(5):
            run, ours, theirs = numbers.gauss(1.0, 0.01), [], []
            for block in range(5):
                drift = run * numbers.gauss(1.0, 0.03)
                for prompt in range(6 * block, 6 * block + 6):
                    hard = 1 + 0.2 * ((prompt * 7) % 5)
                    ours.append(Totals(60, hard * drift * numbers.gauss(1.0, 0.04), prompt, block))
                    theirs.append(Totals(60, 2.0 * numbers.gauss(1.0, 0.04), prompt, block))
            found.append(speed_ratio(ours, theirs))
        for one in found:
            assert one.ci95 is not None
            tried += 4
            held += sum(one.ci95[0] <= other.value <= one.ci95[1] for other in found if other is not one)
    assert held / tried >= 0.95
