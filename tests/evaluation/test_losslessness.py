"""The losslessness tests themselves: what passes, what fails, and that a wrong verifier is caught."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from ssd_infer.evaluation.contenders import ours
from ssd_infer.evaluation.distribution import FEWEST, SETTINGS, chi_square, judge_sampling, pick_context
from ssd_infer.evaluation.enumeration import allowed, enumerate_cells
from ssd_infer.evaluation.losslessness import LosslessResult, Regret, first_divergence, judge_greedy, regret
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget
from tests.conftest import ModelFactory

FOREVER = Budget(0.0).deadline(1.0)
CONTEXT = [5, 9, 40, 41, 5, 9, 40, 12]


@pytest.mark.parametrize(
    ("ours_", "theirs", "index"),
    [
        ([1, 2], [1, 2], None),
        ([1, 3], [1, 2], 1),
        ([1], [1, 2], 1),
        ([1, 2, 3], [1, 2], 2),
        ([], [1], 0),
        ([], [], None),
    ],
)
def test_first_divergence_counts_missing_tokens(
    ours_: list[int], theirs: list[int], index: int | None
) -> None:
    assert first_divergence(ours_, theirs) == index


def test_equal_outputs_pass_and_say_against_whom() -> None:
    outputs = {(0, 0, 0): [1, 2], (0, 1, 0): [3]}
    found = judge_greedy(outputs, {"plain": dict(outputs), "hf": dict(outputs)})
    assert found.verdict == "pass"
    assert "2 of 2" in found.detail
    assert "hf and plain" in found.detail
    assert found.extra["exact_match"] == 1.0


@pytest.mark.parametrize("broken", [[1, 9], [1], [1, 2, 3], []])
def test_any_difference_fails_a_prefix_and_a_longer_output_too(broken: list[int]) -> None:
    reference = {(0, 0, 0): [1, 2], (0, 1, 0): [3]}
    found = judge_greedy(reference | {(0, 0, 0): broken}, {"plain": reference})
    assert found.verdict == "fail"
    assert found.extra["equal"] == 1


def test_one_reference_that_differs_is_enough() -> None:
    outputs = {(0, 0, 0): [1, 2]}
    assert judge_greedy(outputs, {"plain": outputs, "hf": {(0, 0, 0): [1, 3]}}).verdict == "fail"


def test_missing_outputs_fail_instead_of_shortening_the_comparison() -> None:
    reference = {(0, 0, 0): [1], (0, 1, 0): [2]}
    assert judge_greedy({(0, 0, 0): [1]}, {"plain": reference}).verdict == "fail"
    assert judge_greedy(reference, {"plain": {(0, 0, 0): [1]}}).verdict == "fail"


def test_nothing_to_compare_is_not_run_never_pass() -> None:
    assert judge_greedy({(0, 0, 0): [1]}, {"plain": {}}).verdict == "not_run"
    assert judge_greedy({}, {"plain": {(0, 0, 0): [1]}}).verdict == "not_run"


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    return ours(model, None, {}, Sampling())([prompt], count, 0)[0][0]


def test_regret_gate_excuses_ties_only(tiny_model: ModelFactory) -> None:
    model = tiny_model().to(torch.bfloat16)
    right = greedy(model, CONTEXT, 6)
    wrong = [*right[:3], (right[3] + 1) % 97, *right[4:]]
    gate = Regret(model, {(0, 0): CONTEXT}, 6, frozenset({2}))
    assert gate.accepts((0, 0, 0), right)[0]
    assert not gate.accepts((0, 0, 0), wrong)[0]
    assert not gate.accepts((0, 0, 0), right[:4])[0], "shorter than the limit without an end mark"
    assert regret(model, CONTEXT, wrong)[0] > regret(model, CONTEXT, wrong)[1]
    found = judge_greedy({(0, 0, 0): right}, {"plain": {(0, 0, 0): wrong}}, gate, strict=False)
    assert found.verdict == "pass"
    assert "tie within rounding" in found.detail
    assert (
        judge_greedy({(0, 0, 0): wrong}, {"plain": {(0, 0, 0): right}}, gate, strict=False).verdict == "fail"
    )
    strict = judge_greedy({(0, 0, 0): right}, {"plain": {(0, 0, 0): wrong}}, gate)
    assert strict.verdict == "fail"
    assert "in the target's own logits" in strict.detail
    assert judge_greedy({(0, 0, 0): []}, {"plain": {(0, 0, 0): right}}, gate, strict=False).verdict == "fail"


def test_allowed_keeps_top_k_then_top_p() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    assert allowed(logits, Sampling(1.0, 2)).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert allowed(logits, Sampling(1.0, 0, 0.7)).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert allowed(logits, Sampling(1.0, 0, 0.5)).tolist() == pytest.approx([1, 0, 0, 0])
    squared = [p**2 for p in (0.5, 0.25, 0.15, 0.1)]
    assert allowed(logits, Sampling(0.5)).tolist() == pytest.approx([p / sum(squared) for p in squared])


def test_enumeration_is_a_distribution_and_matches_the_model(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    cells = enumerate_cells(model, CONTEXT, Sampling(1.0, 3), 2)
    assert len(cells) == 9
    assert sum(cells.values()) == pytest.approx(1.0)
    logits = model(input_ids=torch.tensor([CONTEXT])).logits[0, -1]
    top = logits.topk(3)
    first = {token: sum(p for key, p in cells.items() if key[0] == token) for token in top.indices.tolist()}
    assert list(first.values()) == pytest.approx(top.values.softmax(-1).tolist(), rel=1e-4)


def draws(cells: dict[tuple[int, ...], float], count: int, seed: int) -> Counter[tuple[int, ...]]:
    keys, generator = list(cells), torch.Generator().manual_seed(seed)
    weights = torch.tensor([cells[key] for key in keys])
    return Counter(
        keys[i] for i in torch.multinomial(weights, count, replacement=True, generator=generator).tolist()
    )


def test_chi_square_is_calibrated() -> None:
    cells = {(i,): p for i, p in enumerate([0.4, 0.3, 0.15, 0.1, 0.04, 0.007, 0.003])}
    values = [chi_square(draws(cells, 800, seed), cells).p_value for seed in range(300)]
    assert 0.02 <= sum(p < 0.1 for p in values) / 300 <= 0.18
    assert min(values) > 1e-4


def test_chi_square_sees_a_small_shift_and_the_impossible() -> None:
    cells = {(i,): p for i, p in enumerate([0.4, 0.3, 0.2, 0.1])}
    shifted = {(i,): p for i, p in enumerate([0.33, 0.3, 0.2, 0.17])}
    assert chi_square(draws(shifted, 2400, 0), cells).p_value < 1e-4
    assert chi_square(draws(cells, 2400, 0) + Counter({(9,): 1}), cells).p_value == 0.0


def judge(model: Any, draft: str, params: dict[str, Any], count: int = 1600) -> LosslessResult:
    decodes = [(sampling, ours(model, draft, params, sampling, eos=[])) for sampling in SETTINGS]
    return judge_sampling(model, decodes, CONTEXT, FOREVER, draws=count)


def test_right_sampler_passes(tiny_model: ModelFactory) -> None:
    found = judge(tiny_model(), "early_exit", {"exit_layer": 1, "gamma": 3})
    assert found.verdict == "pass", found.detail
    assert found.extra["tests"][0]["drafted"] > 0


def wrong_sample(accept: Any, how: str) -> Any:
    """Return a verifier with one mistake."""

    def broken(
        logits: Any, drafts: Any, counts: Any, probs: Any, sampler: Any, unverified: Any = None
    ) -> Any:
        taken, following = accept(logits, drafts, counts, probs, sampler, unverified)
        rows = torch.arange(len(taken))
        if how == "accepts everything":
            taken = torch.full_like(taken, drafts.shape[1])
            return taken, sampler.draw(sampler.probs(logits[rows, taken])) if not sampler.greedy else logits[
                rows, taken
            ].argmax(-1)
        if how == "ignores the residual":
            return taken, sampler.draw(sampler.probs(logits[rows, taken]))
        return taken, following

    return broken


@pytest.mark.parametrize("how", ["accepts everything", "ignores the residual"])
def test_wrong_sampling_verifier_fails(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    import ssd_infer.engine.verdict as verdict

    monkeypatch.setattr(verdict, "accept", wrong_sample(verdict.accept, how))
    found = judge(tiny_model(), "early_exit", {"exit_layer": 1, "gamma": 3})
    assert found.verdict == "fail", found.detail


def test_wrong_greedy_verifier_fails(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import ssd_infer.engine.verdict as verdict

    model = tiny_model()
    reference = {(0, 0, 0): greedy(model, CONTEXT, 12)}
    decode = ours(model, "early_exit", {"exit_layer": 1, "gamma": 3}, Sampling())
    assert judge_greedy({(0, 0, 0): decode([CONTEXT], 12, 0)[0][0]}, {"plain": reference}).verdict == "pass"
    monkeypatch.setattr(verdict, "accept", wrong_sample(verdict.accept, "accepts everything"))
    assert judge_greedy({(0, 0, 0): decode([CONTEXT], 12, 0)[0][0]}, {"plain": reference}).verdict == "fail"


def test_sampling_without_drafts_or_draws_is_not_run(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    plain = [(SETTINGS[0], ours(model, None, {}, SETTINGS[0], eos=[]))]
    assert judge_sampling(model, plain, CONTEXT, FOREVER, draws=400).verdict == "not_run"
    assert judge_sampling(model, plain, CONTEXT, FOREVER, draws=800, plain=True).verdict == "pass"
    assert judge_sampling(model, plain, CONTEXT, FOREVER, draws=100, plain=True).verdict == "not_run"


def test_after_the_time_limit_one_setting_is_tested(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    decodes = [(sampling, ours(model, None, {}, sampling, eos=[])) for sampling in SETTINGS]
    late = Budget(1e-9, iter([0.0, *[9.0] * 99]).__next__).deadline(1.0)
    found = judge_sampling(model, decodes, CONTEXT, late, plain=True)
    assert [test["draws"] for test in found.extra["tests"]] == [FEWEST]


def test_context_is_the_most_uncertain_prompt(tiny_model: ModelFactory) -> None:
    prompts = [[7] * 12, CONTEXT]
    assert pick_context(tiny_model(), prompts, 4) in ([7, 7, 7, 7, 7], [5, 9, 40, 41, 5])
