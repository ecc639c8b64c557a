"""Measured costs: noise neither decides nor turns the order of widths round."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from ssd_infer.engine.target import Target
from ssd_infer.strategies.early_exit import exit_calibration
from ssd_infer.strategies.early_exit.exit_calibration import cached_profile
from ssd_infer.tuning import costs, sublayer_costs
from ssd_infer.tuning.costs import Costs, measure_costs, non_decreasing, quiet_seconds
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs
from tests.conftest import ModelFactory


def test_the_quietest_stretch_counts() -> None:
    assert quiet_seconds([1.0, 9.0, 1.2, 5.0, 5.0, 5.0, 1.1, 1.3, 70.0]) == 1.2
    assert quiet_seconds([3.0]) == 3.0
    assert quiet_seconds([4.0, 2.0], blocks=3) == 2.0


def test_violators_are_pooled_and_order_is_kept() -> None:
    assert non_decreasing([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert non_decreasing([3.0, 1.0, 2.0, 5.0, 4.0]) == [2.0, 2.0, 2.0, 4.5, 4.5]
    assert non_decreasing([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]


def test_levelling_is_the_closest_ordered_sequence() -> None:
    values = [0.4, 0.1, 0.9, 0.2]
    found = non_decreasing(values)
    grid = [step / 40 for step in range(41)]
    rivals = itertools.combinations_with_replacement(grid, len(values))
    best = min(sum((a - b) ** 2 for a, b in zip(values, rival, strict=True)) for rival in rivals)
    mine = sum((a - b) ** 2 for a, b in zip(values, found, strict=True))
    assert found == sorted(found)
    assert mine <= best + 1e-12


def test_under_load_no_wide_pass_is_cheaper_than_a_narrow_one(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load during the narrow passes makes them look slow; the verify cost still is no bargain."""
    calls = itertools.count()

    def loaded(call: Callable[[], None], _device: torch.device) -> float:
        call()
        width = (next(calls) // 2) % len(costs.WIDTHS)
        return 3.0 if width == 0 else 1.0 + 0.1 * width

    monkeypatch.setattr(costs, "timed", loaded)
    measured: Costs = measure_costs(Target.of(tiny_model()), context=8)
    assert list(measured.layer) == sorted(measured.layer)
    assert list(measured.step) == sorted(measured.step)
    for gamma in range(1, 17):
        assert measured.exit(0).verify(gamma + 1) >= measured.plain * (1 - 1e-9)
        assert measured.exit(2).verify(gamma + 1) >= measured.plain * (1 - 1e-9)


def test_costs_are_of_the_context_that_is_decoded(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes after a long prompt are measured after one as long; within a power of two, once."""
    asked: list[int] = []

    def measured(_: Target, context: int, *__: object, **___: object) -> Costs:
        asked.append(context)
        return Costs((1, 2), (1.0, 1.0), (1.0, 1.0), 2)

    monkeypatch.setattr(exit_calibration, "measure_costs", measured)
    monkeypatch.setattr(sublayer_costs, "measure_costs", measured)
    model = tiny_model(max_position_embeddings=2048)
    target = Target.of(model)
    for longest in (20, 30, 700, 900, 1500):
        cached_profile(target, [[3] * longest, [5] * 7], do_sample=False)
    assert asked == [20, 700, 1500]
    asked.clear()
    for longest in (20, 130, 700, 900, 1500):
        cached_sublayer_costs(target, longest)
    assert asked == [20, 700, 1500]
