"""Render `report.md` from the report's JSON alone; equal JSON gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ssd_infer.report import tables
from ssd_infer.report.by_task import side_by_side, task_table
from ssd_infer.report.format import cell_text, params_text, readable, row_interval, times
from ssd_infer.report.format import markdown as md
from ssd_infer.report.rows import Report, find_row, headline, noise_line, noise_rows, warnings_of
from ssd_infer.report.table import Table


def draw(table: Table) -> str:
    """Draw one table with its caption; every cell is escaped."""
    drawn = [f"{md(table.caption)}"] if table.caption else []
    if table.rows:
        lines = [
            [md(title) for title in table.columns],
            ["---:" if table.right(at) else "---" for at in range(len(table.columns))],
            *([md(cell_text(cell)) for cell in row] for row in table.rows),
        ]
        drawn.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(drawn)


def section(title: str, shown: Iterable[Table]) -> str:
    """Draw tables under one title."""
    parts = [f"## {md(title)}", *map(draw, shown)]
    return "\n\n".join(part for part in parts if part)


def render_markdown(report: Report) -> str:
    """Render the whole report as Markdown, ending in one line break."""
    absent = tables.absent_table(report)
    single = [
        tables.lossless_table(report),
        tables.other_table(report),
        tables.quality_table(report["quality"]),
        tables.protocol_table(report["protocol"]),
        tables.definition_table(),
    ]
    by_task = [table for table in (side_by_side(report), task_table(report)) if table.rows]
    several = [
        *(tables.Section(table.title, (table,)) for table in by_task),
        *tables.carried(report, plots=True),
    ]
    parts = [
        _title(report),
        _environment(report),
        section("Strategies", [tables.strategy_table(report)]),
        *(section(one.title, one.tables) for one in several),
        section(absent.title, [absent]) if absent.rows else "## Not measured\n\nEvery strategy was measured.",
        *(section(table.title, [table]) for table in single),
    ]
    return "\n\n".join(parts) + "\n"


def _title(report: Report) -> str:
    identity, verdict = report["identity"], report["verdict"]
    row = find_row(report, verdict["best_strategy"])
    best = readable(verdict["best_strategy"]) if verdict["best_strategy"] else "plain decoding"
    step = "?" if identity["step"] is None else identity["step"]
    facts = (
        ("checkpoint", identity["checkpoint"]),
        ("weights", identity["weights_sha256"][:16]),
        ("recipe, step", f"{identity['recipe'] or 'unknown'}, {step}"),
        ("best strategy", f"{best} ({params_text(verdict['best_params'])})"),
        ("speedup", f"{times(verdict['speedup'])} ({row_interval(row) if row else '–'})"),
        *(("noise", noise_line(again)) for again in noise_rows(report)),
    )
    lines = [f"# Checkpoint report\n\n**{md(headline(report))}**", draw(Table("", ("", ""), facts))]
    warnings = "\n".join(f"- {md(line)}" for line in warnings_of(report))
    return "\n\n".join([*lines, *([f"Warnings\n\n{warnings}"] if warnings else [])])


def _environment(report: Report) -> str:
    env = report["environment"]
    return (
        f"Measured on {md(env['device'])} ({md(env['cpu'])}), {env['threads']} threads, {md(env['dtype'])}, batch "
        f"{report['protocol']['batch_size']}; python {md(env['python'])}, torch {md(env['torch'])}, transformers "
        f"{md(env['transformers'])}, ssd {md(env['ssd'])}, seed {env['seed']}{_waits(env)}. "
        "Speedups do not transfer between machines."
    )


def _waits(env: dict[str, Any]) -> str:
    waits = env.get("extra", {}).get("openmp_waits")
    return f", OpenMP threads wait {md(waits)}" if waits else ""
