"""Draw what differs from task to task: a cell for every row on every task."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ssd_infer.report.by_task import MANY, compared, on_task, task_names
from ssd_infer.report.format import plain, readable, task_text
from ssd_infer.report.plots import colour_scale, write_cell
from ssd_infer.report.rows import Report, Row

LONGEST = 30
"""Characters of a name beside or below a heat map."""
Cells = list[list[float | None]]


def draw_speedups(report: Report) -> Figure | None:
    """Draw the speedup of every row that drafted on each task; None where there are too few tasks or no such row."""
    rows, names = compared(report), task_names(report)
    cells = [[on_task(row, name, "speedup") for name in names] for row in rows]
    known = [value for line in cells for value in line if value is not None]
    return (
        _heat_map(rows, names, cells, colour_scale(known, 1.0), "RdBu")
        if known and len(names) >= MANY
        else None
    )


def draw_acceptance(report: Report) -> Figure | None:
    """Draw α of every row that drafted on each task; None where there are too few tasks or no such row."""
    rows, names = compared(report), task_names(report)
    cells = [[on_task(row, name, "alpha") for name in names] for row in rows]
    drawn = [
        (row, line) for row, line in zip(rows, cells, strict=True) if any(value is not None for value in line)
    ]
    if not drawn or len(names) < MANY:
        return None
    return _heat_map(
        [row for row, _ in drawn], names, [line for _, line in drawn], Normalize(-0.5, 1.6), "Blues"
    )


def _heat_map(
    rows: Sequence[Row], names: Sequence[str], cells: Cells, norm: Normalize, colours: str
) -> Figure:
    """Draw rows downwards and tasks across; the largest value of each task is outlined."""
    figure = Figure(figsize=(1.6 + 0.5 * len(names), 1.3 + 0.3 * len(rows)))
    axes = figure.add_subplot()
    table = [[float("nan") if value is None else value for value in line] for line in cells]
    axes.imshow(table, cmap=colours, norm=norm, aspect="auto")
    axes.set_facecolor("#f3f4f6")
    axes.grid(visible=False)
    axes.set_xticks(range(len(names)), [_short(task_text(name)) for name in names], rotation=40, ha="right")
    axes.set_yticks(range(len(rows)), [_short(readable(row["name"])) for row in rows])
    axes.tick_params(length=0)
    for column in range(len(names)):
        best = max((line[column] or 0.0 for line in cells), default=0.0)
        for place, line in enumerate(cells):
            value = line[column]
            if value is not None:
                first = value == best and len(rows) > 1
                write_cell(axes, (column, place), f"{value:.2f}", float(norm(value)), first)
    return figure


def _short(name: str) -> str:
    text = plain(name)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
