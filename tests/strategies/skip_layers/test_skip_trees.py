"""Trees that a skip set drafts: how one is chosen, and what the guard counts."""

from __future__ import annotations

from typing import Any

import pytest

import ssd_infer
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers import skip_calibration
from ssd_infer.strategies.skip_layers.guard import GainGuard
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.sublayer_costs import SublayerCosts, remember_costs
from ssd_infer.tuning.tree_costs import TREE_WIDTHS, remember_tree_costs
from tests.conftest import ModelFactory
from tests.engine.test_exactness import NEW, prompts, reference


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("tree", ["auto", 8])
def test_a_tree_is_chosen_for_a_set_that_is_given(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch, tree: Any, do_sample: bool
) -> None:
    """A tree that is asked for is drafted; `auto` drafts one where passes of any width cost the same."""
    model = tiny_model(vocab_size=29, initializer_range=0.05)
    target, rows = Target.of(model), prompts(4, 29)
    flat = Costs(TREE_WIDTHS, (1.0,) * 7, (0.01,) * 7, 4)
    remember_costs(target, SublayerCosts(flat, 0.5, 0.5), do_sample)
    remember_tree_costs(target, flat, 100, do_sample)
    raced: list[Any] = []

    def race(_: Any, __: Any, params: Any, *___: Any) -> float:
        raced.append(params)
        return 1.4

    monkeypatch.setattr(skip_calibration, "measured_speedup", race)
    given = {"skip_attention": [0, 1, 2, 3], "skip_mlp": [0, 1, 2, 3], "gamma": 3, "tree": tree}
    out = ssd_infer.generate(
        model,
        rows,
        draft="skip_set",
        draft_params=given,
        max_new_tokens=NEW,
        do_sample=do_sample,
        seed=0,
    )
    assert out.draft_params["tree"] in ((8,) if tree == 8 else (4, 8, 16, 32))
    assert out.draft_params["shares"]
    assert "nodes down to 3" in out.note
    assert all(params.tree == out.draft_params["tree"] for params in raced)
    if not do_sample:
        assert out.sequences == reference(model, rows)


def test_the_guard_counts_what_a_round_of_a_tree_costs() -> None:
    costs = SublayerCosts(Costs((1,), (1.0,), (1.0,), 4), 0.5, 0.5)
    guard = GainGuard(costs, SkipSet.of([2], []), 1.0, round_seconds=10.0)
    for _ in range(8):
        assert guard.drafts()
        guard.learn(accepted=1.5, drafted=9.0)
    assert guard.speedup == pytest.approx(2.5 * 5.0 / 10.0)
    slow = GainGuard(costs, SkipSet.of([2], []), 1.0, round_seconds=20.0)
    for _ in range(6):
        slow.learn(accepted=1.5, drafted=9.0)
    assert not slow.drafts()
