"""Render a comparison as terminal tables or as Markdown."""

from __future__ import annotations

from typing import Any

from rich import table as rich

from ssd_infer.report.format import interval, markdown, number, params_text, readable, said, times
from ssd_infer.report.markdown import draw as markdown_table
from ssd_infer.report.markdown import section
from ssd_infer.report.table import Table, Word
from ssd_infer.report.terminal import draw

SUMMARY_HEAD = ("report", "recipe", "step", "best", "speedup", "plain tokens/s", "loss", "warnings")


def cell_text(cell: dict[str, Any]) -> str:
    """Say one strategy's result in one report in few words."""
    if cell["status"] != "ok":
        return str(cell["status"]).replace("_", " ")
    verdict = "" if cell["verdict"] == "pass" else f" ({str(cell['verdict']).replace('_', ' ')})"
    return f"{times(cell['speedup'])} [{interval(cell['ci95'])}] α {number(cell['alpha'])}{verdict}"


def summary_cells(label: str, entry: dict[str, Any]) -> tuple[str, ...]:
    """Return one report's line of the summary table."""
    step = "–" if entry["step"] is None else str(entry["step"])
    return (
        label,
        entry["recipe"] or "–",
        step,
        readable(entry["best"]) if entry["best"] else "–",
        times(entry["speedup"]),
        number(entry["plain_tokens_per_second"], 1),
        number(entry["loss"], 3),
        str(entry["warnings"]),
    )


def summary_table(comparison: dict[str, Any]) -> Table:
    """Return one line a report."""
    pairs = zip(comparison["labels"], comparison["summaries"], strict=True)
    rows = tuple(summary_cells(label, entry) for label, entry in pairs)
    return Table("", SUMMARY_HEAD, rows, figures=range(4, 8))


def strategy_table(comparison: dict[str, Any]) -> Table:
    """Return one line a strategy, one column a report."""
    caption = "Speedup over plain decoding in the same report, its 95 % interval, and α."
    return _by_report(
        comparison, caption, [list(map(cell_text, row["cells"])) for row in visible_rows(comparison)]
    )


def parameter_table(comparison: dict[str, Any]) -> Table:
    """Return with which parameters each strategy was decoded in each report."""
    cells = [[params_text(cell["params"]) for cell in row["cells"]] for row in visible_rows(comparison)]
    return _by_report(comparison, "", cells)


def _by_report(comparison: dict[str, Any], caption: str, cells: list[list[str]]) -> Table:
    pairs = zip(visible_rows(comparison), cells, strict=True)
    rows = tuple((Word(readable(row["name"]), "name", row["name"]), *line) for row, line in pairs)
    return Table("", ("strategy", *comparison["labels"]), rows, caption)


def visible_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows at least one report measured or failed."""
    return [
        row for row in comparison["rows"] if any(cell["status"] in ("ok", "failed") for cell in row["cells"])
    ]


def worse_lines(comparison: dict[str, Any]) -> list[str]:
    """Return what got worse, as people read it."""
    names = [row["name"] for row in comparison["rows"]]
    return [said(line, names) for line in comparison["regressions"]]


def terminal_tables(comparison: dict[str, Any]) -> list[rich.Table]:
    """Build the summary and the strategy table for rich."""
    return [draw(summary_table(comparison)), draw(strategy_table(comparison))]


def render_comparison(comparison: dict[str, Any]) -> str:
    """Render a comparison as Markdown; equal comparisons give equal bytes."""
    worse = "\n".join(f"- {markdown(line)}" for line in worse_lines(comparison)) or "None."
    parts = [
        "# Comparison of checkpoint reports",
        markdown_table(summary_table(comparison)),
        section("Strategies", [strategy_table(comparison)]),
        section("Parameters", [parameter_table(comparison)]),
        f"## Regressions against {markdown(comparison['labels'][0])}\n\n{worse}",
    ]
    if comparison["remarks"]:
        notes = "\n".join(f"- {markdown(line)}" for line in comparison["remarks"])
        parts.append(f"## Read with care\n\n{notes}")
    return "\n\n".join(parts) + "\n"
