"""Every table of a report, from its JSON alone; HTML, Markdown and the terminal draw the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssd_infer.report.definitions import DEFINITIONS
from ssd_infer.report.format import (
    bytes_text,
    interval,
    milliseconds,
    number,
    percent,
    readable,
    row_interval,
    row_params,
    said,
    task_text,
    times,
)
from ssd_infer.report.rows import (
    STATUS_TEXT,
    Report,
    Row,
    all_rows,
    is_sampled,
    names_of,
    noise_line,
    noise_rows,
    ok_rows,
    other_rows,
    plain_rows,
)
from ssd_infer.report.sweep import sweep_plot, sweep_table
from ssd_infer.report.table import Cell, Plot, Table, Word, plots_of, tables_of

SPEED = ("tokens/s", "first token ms", "between tokens ms")
"""Columns that plain decodings, peers and strategies share."""


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a report."""

    title: str
    tables: tuple[Table, ...]


def look_of(row: Row) -> str:
    """Return by which setting a row is filtered."""
    return "sampled" if is_sampled(row) else "greedy"


def speed_cells(row: Row, rate: float | None) -> tuple[str, ...]:
    """Return the cells under `SPEED`; between tokens stand median and 95th percentile."""
    waits = row.get("extra", {}).get("latency") or {}
    between = [milliseconds(waits.get(key)) for key in ("itl_ms_p50", "itl_ms_p95")]
    return (
        number(rate, 1),
        milliseconds(waits.get("ttft_ms")),
        " / ".join(between) if "itl_ms_p50" in waits else "–",
    )


def name_cell(row: Row) -> Word:
    """Return the name of a row as people read it, and on a closer look as it is typed."""
    return Word(readable(row["name"]), "name", row["name"])


def verdict_cell(row: Row) -> Word:
    """Return the verdict of a row's losslessness test; other tokens are no failure of a row that claims none."""
    verdict = row["lossless"]["verdict"]
    if verdict == "fail" and not row["lossless"]["claimed"]:
        return Word("lossy", "badge lossy", "lossy by design: its output differs from plain decoding's")
    return Word(verdict.replace("_", " "), f"badge {verdict}")


def strategy_table(report: Report, most: int | None = None) -> Table:
    """Return the measured strategies, fastest first; of each at most `most` parameters."""
    rows = ok_rows(report)
    first = ("strategy", "parameters", "lossless", "speedup", "95 %", "predicted")
    columns = (*first, *SPEED, "α", "τ", "c", "v", "distinct-3", "memory")
    best = report["verdict"]["best_strategy"]
    looks = tuple(look_of(row) + (" best" if row["name"] == best else "") for row in rows)
    cells = tuple(_strategy(row, most) for row in rows)
    table = Table("", columns, cells, "", range(3, len(columns)), looks, orders(rows))
    timed = any(row.get("extra", {}).get("latency") for row in (*rows, *plain_rows(report)))
    return table if timed else _without(table, SPEED[1:])


def _without(table: Table, columns: Sequence[str]) -> Table:
    """Return `table` without columns of figures that a report knows nothing of."""
    kept = [place for place, title in enumerate(table.columns) if title not in columns]
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    titles = tuple(table.columns[place] for place in kept)
    figures = None if table.figures is None else range(table.figures.start, len(kept))
    return Table(table.title, titles, rows, table.caption, figures, table.looks, table.orders)


def _strategy(row: Row, most: int | None) -> tuple[Cell, ...]:
    speed, cost, acceptance = row["speed"], row["cost"], row["acceptance"]
    return (
        name_cell(row),
        Word(row_params(row, most), "params", str(row["params"])),
        verdict_cell(row),
        times(speed["speedup"]),
        Word(row_interval(row), "wrap"),
        times(speed["predicted_speedup"]),
        *speed_cells(row, speed["tokens_per_second"]),
        number(acceptance["alpha"]),
        number(acceptance["tau"]),
        number(cost["draft_ratio_c"]),
        number(cost["verify_ratio"]),
        number(row["extra"].get("repetition", {}).get("distinct_3")),
        bytes_text(row["memory"]["extra_bytes"]),
    )


ORDERS: tuple[tuple[str, bool, Callable[[Row], float | None]], ...] = (
    ("speedup", True, lambda row: row["speed"]["speedup"]),
    ("tokens/s", True, lambda row: row["speed"]["tokens_per_second"]),
    ("first token", False, lambda row: (row["extra"].get("latency") or {}).get("ttft_ms")),
    ("between tokens", False, lambda row: (row["extra"].get("latency") or {}).get("itl_ms_p50")),
    ("α", True, lambda row: row["acceptance"]["alpha"]),
    ("memory", False, lambda row: row["memory"]["extra_bytes"]),
)
"""Orders of the strategies: what by, whether the largest comes first, and the figure."""


def orders(rows: Sequence[Row]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each row's place in every order; rows without the figure come last, ties as they are."""
    found = []
    for title, falling, figure in ORDERS:
        values = [figure(row) for row in rows]
        if any(value is not None for value in values):
            found.append((title, places([_key(value, falling) for value in values])))
    return (*found, ("name", places([(False, readable(row["name"])) for row in rows])))


def _key(value: float | None, falling: bool) -> tuple[bool, float]:
    return (value is None, 0.0 if value is None else -value if falling else value)


def places(keys: Sequence[Any]) -> tuple[int, ...]:
    """Return the place of each key in ascending order."""
    order = sorted(range(len(keys)), key=lambda index: keys[index])
    return tuple(order.index(index) for index in range(len(keys)))


def absent_table(report: Report, statuses: Sequence[str] = tuple(STATUS_TEXT)) -> Table:
    """Return the rows of these states that carry a reason instead of figures."""
    rows = [row for row in other_rows(report) if row["status"] in statuses]
    names = names_of(report)
    cells = tuple(
        (
            name_cell(row),
            Word(STATUS_TEXT[row["status"]], f"badge {row['status']}"),
            said(row["reason"], names),
        )
        for row in rows
    )
    return Table("Not measured", ("strategy", "state", "reason"), cells, looks=tuple(map(look_of, rows)))


def lossless_table(report: Report) -> Table:
    """Return what was tested of each measured strategy."""
    rows, names = ok_rows(report), names_of(report)
    cells = tuple(
        (
            name_cell(row),
            verdict_cell(row),
            Word("lossless" if row["lossless"]["claimed"] else "lossy by design", "flat"),
            said(row["lossless"]["detail"], names),
        )
        for row in rows
    )
    columns = ("strategy", "verdict", "claims", "test in this run")
    return Table("Losslessness", columns, cells, looks=tuple(map(look_of, rows)))


def other_table(report: Report) -> Table:
    """Return plain decodings, one of them against itself, and what a user would pick instead."""
    plain, noise, peers = plain_rows(report), noise_rows(report), report["peers"]
    cells = [(name_cell(row), Word("plain", "flat"), *_rate(row), "–", "–", "–", "") for row in plain]
    cells += [
        (
            name_cell(row),
            Word("plain again", "flat"),
            *_rate(row),
            times(row["extra"]["again"]["speedup"]),
            interval(row["extra"]["again"]["ci95"]),
            "–",
            Word(noise_line(row), "remark"),
        )
        for row in noise
    ]
    cells += [
        (
            name_cell(row),
            Word("peer", "flat"),
            *_rate(row),
            times(row["speedup"]),
            Word(row_interval(row), "wrap"),
            row["verdict"].replace("_", " "),
            said(row.get("extra", {}).get("reason") or "", names_of(report)),
        )
        for row in peers
    ]
    columns = ("name", "kind", *SPEED, "speedup", "95 %", "same tokens", "remark")
    looks = tuple(map(look_of, (*plain, *noise, *peers)))
    table = Table(
        "Plain decoding, and what a user would pick instead", columns, tuple(cells), "", range(2, 7), looks
    )
    timed = any(row.get("extra", {}).get("latency") for row in (*plain, *peers))
    return table if timed else _plainer(table)


def _plainer(table: Table) -> Table:
    fewer = _without(table, SPEED[1:])
    return Table(fewer.title, fewer.columns, fewer.rows, fewer.caption, range(2, 5), fewer.looks)


def _rate(row: Row) -> tuple[str, ...]:
    return speed_cells(row, row["tokens_per_second"])


def quality_table(quality: dict[str, Any]) -> Table:
    """Return loss, perplexity and agreement of every exit; without rows where nothing was measured."""
    exits = quality.get("exits") or []
    source = f"{quality.get('tokens', 0)} held-out tokens ({quality.get('source', 'unknown')})"
    note = f"{source}; the last row is the whole model."
    cells = tuple(
        (
            exit_["layer"],
            number(exit_["loss"], 3),
            number(exit_["perplexity"], 1),
            percent(exit_["agreement"]),
        )
        for exit_ in exits
    )
    caption = note if exits else str(quality.get("reason") or "Not measured.")
    columns = ("layers", "loss", "perplexity", "agreement with the last")
    return Table("Quality of the checkpoint", columns, cells, caption, range(4))


def protocol_table(protocol: dict[str, Any]) -> Table:
    """Return the tasks, and how they were decoded as the caption."""
    sampling = ", ".join(f"{key} {value}" for key, value in protocol["sampling"].items())
    caption = (
        f"Batch size {protocol['batch_size']}, {protocol['repeats']} repeats; sampling: {sampling}; "
        f"timer: {protocol['timer']}."
    )
    tasks = protocol["tasks"]
    cells = tuple(
        (
            Word(task_text(task["name"]), "", task["name"]),
            task["samples"],
            _lengths(task),
            task["new_tokens"],
            task.get("extra", {}).get("prompts_sha256", "")[:16],
            task.get("extra", {}).get("written_by", "–"),
        )
        for task in tasks
    )
    columns = ("task", "prompts", "prompt tokens", "new tokens", "prompt hash", "written by")
    written = any(task.get("extra", {}).get("written_by") for task in tasks)
    caption += " Prompts that are messages are kept whole, whatever prompt_tokens says." if written else ""
    table = Table("Protocol", columns, cells, caption, range(1, 4))
    return table if written else _without(table, columns[-1:])


def _lengths(task: Row) -> str:
    """Return the length of a task's prompts, from the shortest to the longest where they differ."""
    longest = task["prompt_tokens"]
    shortest = task.get("extra", {}).get("shortest_prompt", longest)
    return f"{longest}" if shortest == longest else f"{shortest}–{longest}"


def definition_table() -> Table:
    """Return the words of a report."""
    return Table("Definitions", ("name", "definition"), DEFINITIONS)


def carried(report: Report, *, plots: bool) -> list[Section]:
    """Return what rows carry: the sweep, tables of their own, and where `plots` those that stand for their plots."""
    rows = all_rows(report)
    known = {row["name"]: row for row in rows}
    found = [
        Section(f"{readable(name)}: {table.title}", (_read(name, table, known),))
        for name, table in tables_of(rows)
    ]
    grown = sweep_table(report)
    swept = [Section(grown.title, (grown,))] if grown.rows else []
    drawn = [(title, plot) for title, plot in carried_plots(report) if plots and plot.listed]
    return [*swept, *found, *(Section(title, (plot.table(),)) for title, plot in drawn)]


def _read(owner: str, table: Table, rows: Mapping[str, Row]) -> Table:
    """Return a table of the row `owner`, or of several, with names as people read them and lines by their setting."""
    names, looks = list(rows), []
    cells = tuple(tuple(_named(cell) if cell in rows else cell for cell in line) for line in table.rows)
    for line in table.rows:
        row = rows.get(owner) or rows.get(str(line[0]))
        looks.append(look_of(row) if row else "")
    return replace(table, rows=cells, caption=said(table.caption, names), looks=tuple(looks))


def _named(name: Cell) -> Word:
    return Word(readable(str(name)), "name", str(name))


def carried_plots(report: Report) -> list[tuple[str, Plot]]:
    """Return the plots that rows carry, the sweep's first, each with its title, with names as people read them."""
    names, swept = names_of(report), sweep_plot(report)
    found = [] if swept is None else [(swept.title, swept)]
    for name, plot in plots_of(all_rows(report)):
        series = tuple(replace(one, name=said(one.name, names)) for one in plot.series)
        found.append((f"{readable(name)}: {plot.title}", replace(plot, series=series)))
    return found
