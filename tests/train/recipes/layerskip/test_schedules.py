"""Weights and schedules against the closed forms and the published reference numbers."""

from __future__ import annotations

import pytest

from ssd_train.losses.weights import exit_scale, normalised_weights
from ssd_train.recipes.layerskip.schedules import (
    depth_scale,
    dropout_probability,
    enabled_layers,
    gradual,
    rotational,
    time_scale,
)


@pytest.mark.parametrize(
    ("e_scale", "expected"), [(0.2, (0.027, 0.115, 0.264, 0.594)), (1.0, (0.030, 0.130, 0.300, 0.539))]
)
def test_reference_weights_of_32_layers(e_scale: float, expected: tuple[float, ...]) -> None:
    weights = normalised_weights([7, 15, 23, 31], 32, e_scale)
    assert list(weights.values()) == pytest.approx(expected, abs=1e-3)


def test_last_layer_of_16_weighs_067_to_090_depending_on_the_phase() -> None:
    shares = [normalised_weights(enabled_layers("rotational", 16, t, 100, 8), 16, 0.1)[15] for t in range(8)]
    assert min(shares) == pytest.approx(0.67, abs=0.01)
    assert max(shares) == pytest.approx(0.90, abs=0.01)


@pytest.mark.parametrize("on", [[3], [0, 3], [1, 2, 3], [0, 1, 2, 3, 4, 5]])
def test_weights_of_any_subset_follow_the_closed_form(on: list[int]) -> None:
    def closed(layer: int) -> float:
        return 0.3 * layer * (layer + 1) / 2 if layer < 5 else 5 + 0.3 * 4 * 5 / 2

    total = sum(closed(layer) for layer in on)
    found = normalised_weights(on, 6, 0.3)
    assert found == pytest.approx({layer: closed(layer) / total for layer in on})
    assert sum(found.values()) == pytest.approx(1)


def test_other_weightings() -> None:
    assert [exit_scale(layer, 4, 0.5, "linear") for layer in range(4)] == [0, 0.5, 1, 3]
    assert [exit_scale(layer, 4, 0.5, "uniform") for layer in range(4)] == [0.5, 0.5, 0.5, 1]
    with pytest.raises(ValueError, match="unknown exit weights"):
        exit_scale(1, 4, 0.5, "cubic")


def test_depth_scale() -> None:
    assert depth_scale(0, 24) == 0
    assert depth_scale(23, 24) == 1
    assert depth_scale(5, 24) == pytest.approx(2 ** (5 / 23) - 1)
    assert sum(depth_scale(layer, 1000) for layer in range(1000)) / 1000 == pytest.approx(0.443, abs=1e-3)
    assert depth_scale(5, 24, "linear") == pytest.approx(5 / 23)
    assert depth_scale(5, 24, "uniform") == 1
    assert depth_scale(0, 1) == 0


def test_time_scale() -> None:
    assert [time_scale(t, 10) for t in (0, 9)] == [1, 1]
    assert time_scale(0, 10, "exp") == 0
    assert time_scale(9, 10, "exp") == 1
    assert time_scale(3, 10, "exp") == pytest.approx(2 ** (3 / 9) - 1)
    assert time_scale(50, 10, "exp") == 1


def test_dropout_probability_is_the_product() -> None:
    assert dropout_probability(7, 8, 9, 10, 0.2, "exp", "exp") == pytest.approx(0.2)
    expected = 0.2 * (2 ** (3 / 7) - 1) * (2 ** (4 / 9) - 1)
    assert dropout_probability(3, 8, 4, 10, 0.2, "exp", "exp") == pytest.approx(expected)
    mean = sum(dropout_probability(layer, 32, 0, 1, 0.2, "exp", "const") for layer in range(32)) / 32
    assert mean == pytest.approx(0.0889, abs=1e-3)


@pytest.mark.parametrize("period", [1, 3, 8, 20])
def test_rotation_enables_each_layer_once_in_a_period(period: int) -> None:
    for layer in range(16):
        assert sum(rotational(layer, step, period) for step in range(100, 100 + period)) == 1
    on = [len(enabled_layers("rotational", 16, step, 999, period)) for step in range(period)]
    assert max(on) <= -(-16 // period) + 1


def test_rotation_over_chosen_exits_runs_over_their_places() -> None:
    on = [enabled_layers("rotational", 12, step, 99, 2, [3, 7]) for step in range(3)]
    assert on == [[3, 11], [7, 11], [3, 11]]


def test_gradual_enables_the_deepest_first_and_all_by_half_time() -> None:
    assert enabled_layers("gradual", 8, 0, 160) == [7]
    assert enabled_layers("gradual", 8, 10, 160) == [6, 7]
    assert enabled_layers("gradual", 8, 70, 160) == list(range(8))
    for layer in range(8):
        start = (7 - layer) * 160 / 16
        assert not gradual(layer, 8, int(start) - 1, 160)
        assert gradual(layer, 8, int(start), 160)


@pytest.mark.parametrize("kind", ["rotational", "gradual", "all", "none"])
def test_the_last_layer_is_always_on(kind: str) -> None:
    assert all(9 in enabled_layers(kind, 10, step, 50, 4) for step in range(50))


def test_unknown_kinds_are_refused() -> None:
    for call in (
        lambda: depth_scale(1, 4, "x"),
        lambda: time_scale(1, 4, "x"),
        lambda: enabled_layers("x", 4, 0, 1),
    ):
        with pytest.raises(ValueError, match="unknown"):
            call()
