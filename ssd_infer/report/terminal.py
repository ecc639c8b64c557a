"""Show a report in a terminal: the verdict, the strategies with what they are compared with, the warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import table as rich
from rich.console import Console
from rich.text import Text

from ssd_infer.report.by_task import fastest_rows, fastest_table
from ssd_infer.report.format import cell_text, number, plain, row_interval, row_params, times
from ssd_infer.report.rows import (
    Report,
    Row,
    broken_rows,
    headline,
    noise_line,
    noise_rows,
    ok_rows,
    plain_rows,
    warnings_of,
)
from ssd_infer.report.table import Cell, Table, Word
from ssd_infer.report.tables import absent_table, name_cell, speed_cells, verdict_cell

STYLES = {"badge lossy": "dim", "badge pass": "green", "badge fail": "bold red", "badge not_run": "yellow"}
COLUMNS = (
    "",
    "parameters",
    "speedup",
    "95 %",
    "pred.",
    "tok/s",
    "TTFT ms",
    "ITL ms",
    "α",
    "τ",
    "dist-3",
    "lossless",
)
"""TTFT: time to the first token; ITL: median and 95th percentile of the time between tokens."""
WIDE = 132
"""Columns of a terminal from which there is room for latencies."""

LONGEST_BAR = 16


def print_report(report: Report, folder: Path | None = None, console: Console | None = None) -> None:
    """Print the report on `console` (the output stream when None), and where its files are."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 110)
    console.print()
    console.print(Text(plain(headline(report)), style="bold red" if broken_rows(report) else "bold"))
    console.print(draw(brief_table(report, latency=console.width >= WIDE)))
    tasks = fastest_table(report)
    if tasks.rows:
        console.print(Text(f"\n{tasks.title}", style="bold"))
        console.print(draw(with_bars(report, tasks)))
        console.print()
    for row in noise_rows(report):
        console.print(Text(f"  noise: {plain(noise_line(row))}"), soft_wrap=True)
    for line in _absent(report):
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    for warning in warnings_of(report):
        console.print(Text(f"  warning: {plain(warning)}", style="yellow"), soft_wrap=True)
    if folder is not None:
        console.print(Text(f"  page: {(Path(folder) / 'report.html').resolve()}"), soft_wrap=True)


def with_bars(report: Report, tasks: Table) -> Table:
    """Return the table of the fastest rows by task, each named once, the longest bar for the largest speedup."""
    found = [task["speedup"] or 0.0 for row in fastest_rows(report) for task in row["per_task"]]
    names = [cells[0] for cells in tasks.rows]
    rows = tuple(
        (
            "" if at and names[at - 1] == names[at] else names[at],
            *cells[1:],
            _bar(found[at] / max(1.0, *found)),
        )
        for at, cells in enumerate(tasks.rows)
    )
    return replace(tasks, columns=(*tasks.columns, ""), rows=rows, looks=())


def _bar(share: float) -> str:
    """Return a bar of `LONGEST_BAR` characters for 1, to an eighth of a character."""
    eighths = round(8 * LONGEST_BAR * share)
    return "█" * (eighths // 8) + (chr(0x2590 - eighths % 8) if eighths % 8 else "")


def draw(table: Table) -> rich.Table:
    """Return a table as rich draws it; every cell is a text, so that none is read as markup."""
    drawn = rich.Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for at, title in enumerate(table.columns):
        right = table.right(at)
        drawn.add_column(
            Text(plain(title)),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="ellipsis" if right else "fold",
        )
    for at, row in enumerate(table.rows):
        drawn.add_row(*(_text(cell) for cell in row), style=table.look(at) or None)
    return drawn


def _text(cell: Cell) -> Text:
    style = STYLES.get(cell.kind, "") if isinstance(cell, Word) else ""
    return Text(plain(cell_text(cell)), style=style)


def brief_table(report: Report, *, latency: bool) -> Table:
    """Return measured strategies and peers, fastest first, then plain decodings; with `latency` where it is known."""
    lines = [(row["speed"]["speedup"], _strategy(row), "") for row in ok_rows(report)]
    lines += [(peer["speedup"] or 0.0, _peer(peer), "dim") for peer in report["peers"]]
    lines.sort(key=lambda line: -line[0])
    lines += [(0.0, _plain(row), "dim") for row in plain_rows(report)]
    kept = [at for at in range(len(COLUMNS)) if latency or at not in (6, 7)]
    rows = tuple(tuple(cells[at] for at in kept) for _, cells, _ in lines)
    looks = tuple(look for _, _, look in lines)
    return Table("", tuple(COLUMNS[at] for at in kept), rows, figures=range(2, len(kept) - 1), looks=looks)


def _strategy(row: Row) -> Sequence[Cell]:
    speed, acceptance = row["speed"], row["acceptance"]
    return (
        name_cell(row),
        row_params(row, 3),
        times(speed["speedup"]),
        row_interval(row),
        times(speed["predicted_speedup"]),
        *speed_cells(row, speed["tokens_per_second"]),
        number(acceptance["alpha"]),
        number(acceptance["tau"]),
        number(row["extra"].get("repetition", {}).get("distinct_3")),
        verdict_cell(row),
    )


def _peer(peer: Row) -> Sequence[Cell]:
    kind = "failed" if peer["speedup"] is None else "peer"
    speed = (times(peer["speedup"]), row_interval(peer), "", *speed_cells(peer, peer["tokens_per_second"]))
    return (name_cell(peer), kind, *speed, "", "", "", str(peer["verdict"]).replace("_", " "))


def _plain(row: Row) -> Sequence[Cell]:
    return (name_cell(row), "plain", "", "", "", *speed_cells(row, row["tokens_per_second"]), "", "", "", "")


def _absent(report: Report) -> list[str]:
    """Say why rows have no figures, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for name, state, reason in absent_table(report).rows:
        reasons.setdefault(f"{state}, {plain(reason)}", []).append(plain(name))
    return ["; ".join(names) + f": {reason}" for reason, names in reasons.items()]
