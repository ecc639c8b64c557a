"""Render a comparison as a terminal table or as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from ssd_infer.report.format import interval, markdown, number, params_text, plain, times
from ssd_infer.report.markdown import table as markdown_table

SUMMARY_HEAD = ("report", "recipe", "step", "best", "speedup", "plain tokens/s", "loss", "warnings")


def cell_text(cell: dict[str, Any]) -> str:
    """Say one strategy's result in one report in few words."""
    if cell["status"] != "ok":
        return str(cell["status"]).replace("_", " ")
    verdict = "" if cell["verdict"] == "pass" else f" ({str(cell['verdict']).replace('_', ' ')})"
    return f"{times(cell['speedup'])} [{interval(cell['ci95'])}] α {number(cell['alpha'])}{verdict}"


def summary_cells(label: str, entry: dict[str, Any]) -> list[str]:
    """Return one report's line of the summary table."""
    step = "–" if entry["step"] is None else str(entry["step"])
    return [
        label,
        entry["recipe"] or "–",
        step,
        entry["best"] or "–",
        times(entry["speedup"]),
        number(entry["plain_tokens_per_second"], 1),
        number(entry["loss"], 3),
        str(entry["warnings"]),
    ]


def visible_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows at least one report measured or failed."""
    return [
        row for row in comparison["rows"] if any(cell["status"] in ("ok", "failed") for cell in row["cells"])
    ]


def terminal_tables(comparison: dict[str, Any]) -> list[Table]:
    """Build the summary and the strategy table for rich."""
    summaries = _table(SUMMARY_HEAD)
    for label, entry in zip(comparison["labels"], comparison["summaries"], strict=True):
        summaries.add_row(*(Text(plain(cell)) for cell in summary_cells(label, entry)))
    strategies = _table(["strategy", *comparison["labels"]])
    for row in visible_rows(comparison):
        strategies.add_row(Text(plain(row["name"])), *(Text(cell_text(cell)) for cell in row["cells"]))
    return [summaries, strategies]


def _table(head: Iterable[str]) -> Table:
    """Return an empty table; titles are texts, so that none is read as markup."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title in head:
        table.add_column(Text(plain(title)))
    return table


def render_comparison(comparison: dict[str, Any]) -> str:
    """Render a comparison as Markdown; equal comparisons give equal bytes."""
    lines = [
        summary_cells(label, entry)
        for label, entry in zip(comparison["labels"], comparison["summaries"], strict=True)
    ]
    cells = [[row["name"], *(cell_text(cell) for cell in row["cells"])] for row in visible_rows(comparison)]
    params = [
        [row["name"], *(params_text(cell["params"]) for cell in row["cells"])]
        for row in visible_rows(comparison)
    ]
    worse = "\n".join(f"- {markdown(line)}" for line in comparison["regressions"]) or "None."
    parts = [
        "# Comparison of checkpoint reports",
        markdown_table(SUMMARY_HEAD, lines),
        "## Strategies\n\nSpeedup over plain decoding in the same report, its 95 % interval, and α.\n\n"
        + markdown_table(("strategy", *comparison["labels"]), cells),
        "## Parameters\n\n" + markdown_table(("strategy", *comparison["labels"]), params),
        f"## Regressions against {markdown(comparison['labels'][0])}\n\n{worse}",
    ]
    if comparison["remarks"]:
        parts.append(
            "## Read with care\n\n" + "\n".join(f"- {markdown(line)}" for line in comparison["remarks"])
        )
    return "\n\n".join(parts) + "\n"
