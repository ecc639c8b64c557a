"""Render `report.md` from the report's JSON alone; equal JSON gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ssd_infer.report.definitions import DEFINITIONS
from ssd_infer.report.format import (
    bytes_text,
    cell_text,
    interval,
    number,
    params_text,
    percent,
    row_interval,
    row_params,
    times,
)
from ssd_infer.report.format import markdown as md
from ssd_infer.report.rows import (
    STATUS_TEXT,
    Report,
    all_rows,
    find_row,
    headline,
    noise_line,
    noise_rows,
    ok_rows,
    other_rows,
    plain_rows,
)
from ssd_infer.report.table import Table, plots_of, tables_of

Cells = Iterable[object]


def table(head: Cells, rows: Iterable[Cells]) -> str:
    """Draw one Markdown table; every cell is escaped."""
    titles = [md(cell) for cell in head]
    lines = [titles, ["---"] * len(titles), *([md(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def render_markdown(report: Report) -> str:
    """Render the whole report as Markdown, ending in one line break."""
    parts = [
        _title(report),
        _environment(report),
        "## Strategies\n\n" + _strategies(report),
        _per_task(report),
        *_carried(report),
        "## Not measured\n\n" + _reasons(report),
        "## Plain decoding and what a user would pick instead\n\n" + _others(report),
        "## Quality of the checkpoint\n\n" + _quality(report["quality"]),
        "## Protocol\n\n" + _protocol(report["protocol"]),
        "## Definitions\n\n" + table(("name", "definition"), DEFINITIONS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(report: Report) -> str:
    identity, verdict = report["identity"], report["verdict"]
    row = find_row(report, verdict["best_strategy"])
    facts = [
        ("checkpoint", identity["checkpoint"]),
        ("weights", identity["weights_sha256"][:16]),
        (
            "recipe, step",
            f"{identity['recipe'] or 'unknown'}, {identity['step'] if identity['step'] is not None else '?'}",
        ),
        (
            "best strategy",
            f"{verdict['best_strategy'] or 'plain decoding'} ({params_text(verdict['best_params'])})",
        ),
        ("speedup", f"{times(verdict['speedup'])} ({row_interval(row) if row else '–'})"),
        *(("noise", noise_line(again)) for again in noise_rows(report)),
    ]
    lines = [f"# Checkpoint report\n\n**{md(headline(report))}**", table(("", ""), facts)]
    warnings = [f"- {md(text)}" for text in verdict["warnings"]]
    return "\n\n".join([*lines, *(["Warnings\n\n" + "\n".join(warnings)] if warnings else [])])


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


def _strategies(report: Report) -> str:
    head = (
        "strategy",
        "parameters",
        "lossless",
        "tokens/s",
        "speedup",
        "95 %",
        "predicted",
        "α",
        "τ",
        "c",
        "v",
        "distinct-3",
        "extra memory",
    )
    return table(head, [_strategy_cells(row) for row in ok_rows(report)])


def _strategy_cells(row: dict[str, Any]) -> list[object]:
    speed, cost, acceptance = row["speed"], row["cost"], row["acceptance"]
    return [
        row["name"],
        row_params(row),
        row["lossless"]["verdict"],
        number(speed["tokens_per_second"], 1),
        times(speed["speedup"]),
        row_interval(row),
        times(speed["predicted_speedup"]),
        number(acceptance["alpha"]),
        number(acceptance["tau"]),
        number(cost["draft_ratio_c"]),
        number(cost["verify_ratio"]),
        number(row["extra"].get("repetition", {}).get("distinct_3")),
        bytes_text(row["memory"]["extra_bytes"]),
    ]


def _per_task(report: Report) -> str:
    rows = [
        (
            row["name"],
            task["name"],
            number(task["tokens_per_second"], 1),
            times(task["speedup"]),
            interval(task["ci95"]),
            number(task["alpha"]),
            number(task["tau"]),
        )
        for row in ok_rows(report)
        for task in row["per_task"]
    ]
    if not rows:
        return ""
    return "## By task\n\n" + table(("strategy", "task", "tokens/s", "speedup", "95 %", "α", "τ"), rows)


def _carried(report: Report) -> list[str]:
    """Draw the tables that rows carry as data, and their plots as tables of points."""
    rows = all_rows(report)
    drawn = [*tables_of(rows), *((name, plot.table()) for name, plot in plots_of(rows) if plot.listed)]
    return [_carried_table(name, one) for name, one in drawn]


def _carried_table(name: str, carried: Table) -> str:
    caption = f"{md(carried.caption)}\n\n" if carried.caption else ""
    cells = [[cell_text(cell) for cell in row] for row in carried.rows]
    return f"## {md(name)}: {md(carried.title)}\n\n{caption}{table(carried.columns, cells)}"


def _reasons(report: Report) -> str:
    rows = [(row["name"], STATUS_TEXT[row["status"]], row["reason"]) for row in other_rows(report)]
    details = [
        (row["name"], row["lossless"]["verdict"], row["lossless"]["detail"]) for row in ok_rows(report)
    ]
    reasons = table(("strategy", "state", "reason"), rows) if rows else "Every strategy was measured."
    return reasons + "\n\n## Losslessness\n\n" + table(("strategy", "verdict", "test"), details)


def _others(report: Report) -> str:
    rows = [
        (row["name"], "plain", number(row["tokens_per_second"], 1), "–", "–", "–", "")
        for row in plain_rows(report)
    ]
    rows += [
        (
            row["name"],
            "plain again",
            number(row["tokens_per_second"], 1),
            times(row["extra"]["again"]["speedup"]),
            interval(row["extra"]["again"]["ci95"]),
            "–",
            noise_line(row),
        )
        for row in noise_rows(report)
    ]
    rows += [
        (
            row["name"],
            "peer",
            number(row["tokens_per_second"], 1),
            times(row["speedup"]),
            row_interval(row),
            row["verdict"],
            row.get("extra", {}).get("reason") or "",
        )
        for row in report["peers"]
    ]
    return table(("name", "kind", "tokens/s", "speedup", "95 %", "same tokens", "remark"), rows)


def _quality(quality: dict[str, Any]) -> str:
    exits = quality.get("exits") or []
    if not exits:
        return md(quality.get("reason") or "Not measured.")
    rows = [
        (
            exit_["layer"],
            number(exit_["loss"], 3),
            number(exit_["perplexity"], 1),
            percent(exit_["agreement"]),
        )
        for exit_ in exits
    ]
    where = md(quality.get("source", "unknown"))
    note = f"{quality.get('tokens', 0)} held-out tokens ({where}); the last row is the whole model."
    return note + "\n\n" + table(("layers", "loss", "perplexity", "agreement with the last"), rows)


def _protocol(protocol: dict[str, Any]) -> str:
    rows = [
        (
            task["name"],
            task["samples"],
            task["prompt_tokens"],
            task["new_tokens"],
            task.get("extra", {}).get("prompts_sha256", "")[:16],
        )
        for task in protocol["tasks"]
    ]
    sampling = ", ".join(f"{key}={value}" for key, value in protocol["sampling"].items())
    note = f"{protocol['repeats']} repeats; sampling: {md(sampling)}; timer: {md(protocol['timer'])}."
    return note + "\n\n" + table(("task", "prompts", "prompt tokens", "new tokens", "prompt hash"), rows)
