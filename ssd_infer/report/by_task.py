"""What a report says task by task: every figure, the fastest row of each setting, and rows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.report.format import interval, number, task_text, times
from ssd_infer.report.rows import Report, Row, drafts, is_sampled, ok_rows
from ssd_infer.report.table import Cell, Table, Word
from ssd_infer.report.tables import look_of, name_cell

MANY = 3
"""Tasks from which on rows are shown side by side."""
FIGURES = ("tokens/s", "speedup", "95 %", "α", "τ", "distinct-3")


def task_names(report: Report) -> list[str]:
    """Return the measured tasks in the order of the protocol."""
    found = dict.fromkeys(task["name"] for task in report["protocol"]["tasks"])
    return list(found | dict.fromkeys(task["name"] for row in ok_rows(report) for task in row["per_task"]))


def task_table(report: Report) -> Table:
    """Return the figures of every measured strategy on each task."""
    return _figures_of("By task", ok_rows(report))


def _figures_of(title: str, rows: Sequence[Row]) -> Table:
    """Return the figures of `rows` on each of their tasks."""
    pairs = [(row, task) for row in rows for task in row["per_task"]]
    cells = tuple((name_cell(row), task_cell(task["name"]), *figures(task)) for row, task in pairs)
    looks = tuple(look_of(row) for row, _ in pairs)
    return Table(title, ("strategy", "task", *FIGURES), cells, "", range(2, 2 + len(FIGURES)), looks)


def task_cell(name: str) -> Word:
    """Return the name of a task as people read it, and on a closer look as it is typed."""
    return Word(task_text(name), "flat", name)


def figures(task: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells under `FIGURES`."""
    return (
        number(task["tokens_per_second"], 1),
        times(task["speedup"]),
        interval(task["ci95"]),
        number(task["alpha"]),
        number(task["tau"]),
        number(distinct(task)),
    )


def distinct(task: dict[str, Any]) -> float | None:
    """Return distinct-3 of a row's outputs on a task; None where nobody counted."""
    found: float | None = task.get("extra", {}).get("repetition", {}).get("distinct_3")
    return found


def fastest_rows(report: Report) -> list[Row]:
    """Return the fastest row that drafted, greedy and sampled, as far as there is one.

    It is the fastest over all tasks: the best of many rows on each task would be partly luck.
    """
    drafting = [row for row in ok_rows(report) if drafts(row)]
    found = [next((row for row in drafting if is_sampled(row) == sampled), None) for sampled in (False, True)]
    return [row for row in found if row is not None]


def fastest_table(report: Report) -> Table:
    """Return the fastest rows task by task; without rows where there are too few tasks for a view of their own."""
    rows = fastest_rows(report) if len(task_names(report)) >= MANY else []
    return _figures_of("By task: the fastest over all tasks", rows)


def compared(report: Report) -> list[Row]:
    """Return rows that stand side by side: the strategies that drafted, fastest first, then what a user would pick."""
    peers = [
        row for row in report["peers"] if row["speedup"] is not None and row.get("extra", {}).get("per_task")
    ]
    return [*(row for row in ok_rows(report) if drafts(row)), *peers]


def on_task(row: Row, task: str, figure: str) -> float | None:
    """Return a figure of a row on a task; None where it has none."""
    per_task = row["per_task"] if "per_task" in row else row.get("extra", {}).get("per_task", [])
    found: float | None = next((each.get(figure) for each in per_task if each["name"] == task), None)
    return found


def side_by_side(report: Report) -> Table:
    """Return the speedup of every row that drafted on each task; without rows where there are too few tasks."""
    names = task_names(report)
    rows = compared(report) if len(names) >= MANY else []
    cells = tuple((name_cell(row), *_speedups(row, names)) for row in rows)
    columns = ("strategy", *(task_text(name) for name in names))
    caption = "Rows that decode plainly are left out; a dash: not measured in the time there was."
    looks = tuple(map(look_of, rows))
    return Table("Speedup by task", columns, cells, caption, range(1, len(columns)), looks)


def _speedups(row: Row, names: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(times(on_task(row, name, "speedup")) for name in names)
