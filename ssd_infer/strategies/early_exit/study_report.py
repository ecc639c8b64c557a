"""Show what early exit studied of itself: its grid of exits and draft lengths, and what many prompts predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import interval, number, row_interval, times
from ssd_infer.report.table import Plot, Series, Table

FORCED = "Predicted from many prompts"
FORCED_CAPTION = (
    "Acceptance from one teacher-forced pass over the target's own continuation of every prompt (exact when greedy, in "
    "expectation when sampling), costs from repeated passes; the timed decodings beside it check their product. "
    "Prefill is part of what is timed, and not of the prediction."
)
FORCED_HEAD = (
    "prompts",
    "tokens",
    "τ",
    "τ 95 %",
    "τ timed",
    "predicted",
    "predicted 95 %",
    "measured",
    "measured 95 %",
    "ratio",
)
GRID = "Exit layer × draft length"
GRID_CAPTION = (
    "Left: predicted by the cost model. Right: measured; empty cells were not measured. Both are on calibration "
    "prompts."
)
CELLS_CAPTION = (
    "Cells of the grid; on the line the cost model is right, below it decoding is slower than predicted."
)


def forced_tables(row: Mapping[str, Any]) -> list[Table]:
    """Show what many prompts predict beside what the timed ones show; nothing where that was not studied."""
    facts = row["extra"].get("teacher_forced")
    if not facts or row["status"] != "ok":
        return []
    measured = row["speed"]["speedup"]
    line = (
        str(facts["prompts"]),
        str(facts["tokens"]),
        number(facts["tau"]),
        interval(facts["tau_ci95"]),
        number(row["acceptance"]["tau"]),
        times(facts["predicted_speedup"]),
        interval(facts["predicted_ci95"]),
        times(measured),
        row_interval(row),
        number(measured / facts["predicted_speedup"]),
    )
    return [Table(FORCED, FORCED_HEAD, (line,), FORCED_CAPTION)]


def grid_plots(row: Mapping[str, Any]) -> list[Plot]:
    """Draw the grid, predicted and measured, and one against the other; nothing without a grid."""
    grid = row["extra"].get("grid") or {}
    if not grid.get("predicted"):
        return []
    panels = [_panel(kind, grid[kind]) for kind in ("predicted", "measured") if grid.get(kind)]
    heat = Plot(
        GRID,
        "draft length γ",
        "exit layer E",
        tuple(panels),
        GRID_CAPTION,
        "heatmap",
        centre=1.0,
        listed=False,
    )
    return [heat, *_checked(grid)]


def _panel(kind: str, cells: list[dict[str, Any]]) -> Series:
    return Series(
        kind,
        tuple(cell["gamma"] for cell in cells),
        tuple(cell["exit_layer"] for cell in cells),
        tuple(f"{cell['speedup']:.2f}" for cell in cells),
        panel=kind,
        values=tuple(cell["speedup"] for cell in cells),
    )


def _checked(grid: dict[str, list[dict[str, Any]]]) -> list[Plot]:
    """Draw measured against predicted speedup of the measured cells."""
    promised = {(cell["exit_layer"], cell["gamma"]): cell["speedup"] for cell in grid["predicted"]}
    cells = [cell for cell in grid["measured"] if (cell["exit_layer"], cell["gamma"]) in promised]
    if not cells:
        return []
    across = tuple(promised[cell["exit_layer"], cell["gamma"]] for cell in cells)
    up = tuple(cell["speedup"] for cell in cells)
    ends = (min(*across, *up), max(*across, *up))
    labels = tuple(f"E={cell['exit_layer']}, γ={cell['gamma']}" for cell in cells)
    series = (
        Series("as predicted", ends, ends, style="dashed"),
        Series("cells", across, up, labels, style="points"),
    )
    title = "Predicted against measured by exit and draft length"
    return [Plot(title, "predicted speedup", "measured speedup", series, CELLS_CAPTION, listed=False)]
