"""The E × γ grid: what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_infer.strategies.early_exit.grid import GAMMAS, predicted_cells, shown_exits


@pytest.mark.parametrize(("count", "best"), [(3, 2), (10, 4), (12, 7), (24, 2), (40, 33)])
def test_shown_exits_are_few_dense_where_shallow_and_hold_the_best(count: int, best: int) -> None:
    shown = shown_exits(range(1, count + 1), best)
    assert len(shown) <= 11
    assert shown[: min(5, count)] == list(range(1, min(5, count) + 1))
    assert best in shown
    assert shown[-1] == count or count - shown[-1] < count // 4


class Profile:
    """A profile whose best cell lies outside the usual γ values and between the shown exits."""

    exits = range(1, 21)

    def predict(self, exit_layer: int, gamma: int) -> Any:
        from ssd_infer.strategies.early_exit.exit_calibration import ExitPrediction

        speedup = 2.0 - 0.1 * abs(exit_layer - 13) - 0.1 * abs(gamma - 7)
        return ExitPrediction(gamma, 0.0, 0.5, 2.0, 2.0, 0.1, 1.1, speedup, exit_layer)

    def best(self) -> Any:
        return self.predict(13, 7)


def test_predicted_cells_hold_the_best_prediction() -> None:
    cells = predicted_cells(Profile())  # type: ignore[arg-type]
    best = max(cells, key=lambda cell: cell["speedup"])
    assert (best["exit_layer"], best["gamma"], best["speedup"]) == (13, 7, 2.0)
    assert {cell["gamma"] for cell in cells} == {*GAMMAS, 7}
