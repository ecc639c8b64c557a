"""Draw the exit layer × draft length heat maps: predicted and measured side by side, never in one panel."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from ssd_infer.report.rows import Report

Grid = dict[str, list[dict[str, Any]]]


def grid_of(report: Report) -> Grid | None:
    """Return the first row's `extra.grid` (lists `predicted` and `measured` of cells), or None."""
    grids = (row["extra"].get("grid") for row in report["strategies"])
    return next((grid for grid in grids if grid and grid.get("predicted")), None)


def draw_heatmaps(grid: Grid) -> Figure:
    """Draw both panels on one colour scale centred at 1, the best cell of each outlined."""
    exits = sorted({cell["exit_layer"] for cells in grid.values() for cell in cells})
    gammas = sorted({cell["gamma"] for cells in grid.values() for cell in cells})
    values = [cell["speedup"] for cells in grid.values() for cell in cells]
    norm = TwoSlopeNorm(1.0, min(*values, 0.6), max(*values, 1.4))
    figure = Figure(figsize=(2.2 + 0.92 * len(gammas), 1.3 + 0.34 * len(exits)))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, kind in zip(panels, ("predicted", "measured"), strict=True):
        _panel(axes, grid.get(kind, []), exits, gammas, norm)
        axes.set_title(kind, fontsize=10.5)
    panels[0].set_ylabel("exit layer E")
    figure.subplots_adjust(wspace=0.08)
    return figure


def _panel(
    axes: Axes, cells: list[dict[str, Any]], exits: list[int], gammas: list[int], norm: TwoSlopeNorm
) -> None:
    table = [[float("nan")] * len(gammas) for _ in exits]
    for cell in cells:
        table[exits.index(cell["exit_layer"])][gammas.index(cell["gamma"])] = cell["speedup"]
    axes.imshow(table, cmap="RdBu", norm=norm, aspect="auto", origin="lower")
    axes.set_facecolor("#f3f4f6")
    axes.grid(visible=False)
    axes.set_xticks(range(len(gammas)), [str(gamma) for gamma in gammas])
    axes.set_yticks(range(len(exits)), [str(layer) for layer in exits])
    axes.set_xlabel("draft length γ")
    best = max((cell["speedup"] for cell in cells), default=None)
    for cell in cells:
        _write_cell(axes, cell, exits, gammas, norm, cell["speedup"] == best)


def _write_cell(
    axes: Axes, cell: dict[str, Any], exits: list[int], gammas: list[int], norm: TwoSlopeNorm, best: bool
) -> None:
    column, line = gammas.index(cell["gamma"]), exits.index(cell["exit_layer"])
    dark = abs(float(norm(cell["speedup"])) - 0.5) > 0.3
    axes.text(
        column,
        line,
        f"{cell['speedup']:.2f}",
        ha="center",
        va="center",
        fontsize=8,
        color="white" if dark else "#1f2937",
        fontweight="bold" if best else "normal",
    )
    if best:
        axes.plot(
            [column - 0.48, column + 0.48, column + 0.48, column - 0.48, column - 0.48],
            [line - 0.46, line - 0.46, line + 0.46, line + 0.46, line - 0.46],
            color="#111827",
            linewidth=1.6,
        )
