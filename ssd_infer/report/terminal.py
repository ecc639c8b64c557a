"""Show a report in a terminal: the verdict, the strategy table, the peers, the warnings."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ssd_infer.report.format import number, plain, row_interval, row_params, times
from ssd_infer.report.rows import (
    STATUS_TEXT,
    Report,
    Row,
    broken_rows,
    headline,
    noise_line,
    noise_rows,
    ok_rows,
    other_rows,
    plain_rows,
)

COLOURS = {"pass": "green", "fail": "bold red", "not_run": "yellow"}


def print_report(report: Report, folder: Path | None = None, console: Console | None = None) -> None:
    """Print the report on `console` (the output stream when None), and where its files are."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 110)
    console.print()
    console.print(Text(headline(report), style="bold red" if broken_rows(report) else "bold"))
    console.print(strategy_table(report))
    for row in noise_rows(report):
        console.print(Text(f"  noise: {plain(noise_line(row))}"), soft_wrap=True)
    for line in _absent(report):
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    for warning in report["verdict"]["warnings"]:
        console.print(Text(f"  warning: {plain(warning)}", style="yellow"), soft_wrap=True)
    if folder is not None:
        console.print(Text(f"  page: {(Path(folder) / 'report.html').resolve()}"), soft_wrap=True)


def _absent(report: Report) -> list[str]:
    """Say why rows have no figures, one line a reason."""
    reasons: dict[str, list[str]] = {}
    for row in other_rows(report):
        reasons.setdefault(f"{STATUS_TEXT[row['status']]}, {plain(row['reason'])}", []).append(
            plain(row["name"])
        )
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


def strategy_table(report: Report) -> Table:
    """Build the table of measured strategies, peers and plain decoding, fastest first."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for title in ("", "parameters", "speedup", "95 %", "pred.", "tok/s", "α", "τ", "dist-3", "lossless"):
        text = title in ("", "parameters", "lossless")
        table.add_column(
            title,
            justify="left" if text else "right",
            no_wrap=not text,
            overflow="fold" if text else "ellipsis",
        )
    lines = [(row["speed"]["speedup"], _strategy(row)) for row in ok_rows(report)]
    lines += [(peer["speedup"] or 0.0, _peer(peer)) for peer in report["peers"]]
    for _, cells in sorted(lines, key=lambda line: -line[0]):
        table.add_row(*cells)
    for row in plain_rows(report):
        table.add_row(
            *(
                Text(cell, style="dim")
                for cell in (row["name"], "plain", "", "", "", number(row["tokens_per_second"], 1))
            )
        )
    return table


def _strategy(row: Row) -> list[Text]:
    speed, acceptance, verdict = row["speed"], row["acceptance"], row["lossless"]["verdict"]
    repetition = row["extra"].get("repetition", {})
    cells = [
        plain(row["name"]),
        row_params(row, 3),
        times(speed["speedup"]),
        row_interval(row),
        times(speed["predicted_speedup"]),
        number(speed["tokens_per_second"], 1),
        number(acceptance["alpha"]),
        number(acceptance["tau"]),
        number(repetition.get("distinct_3")),
    ]
    return [*(Text(cell) for cell in cells), Text(verdict.replace("_", " "), style=COLOURS[verdict])]


def _peer(peer: Row) -> list[Text]:
    failed = peer["speedup"] is None
    cells = [
        plain(peer["name"]),
        "failed" if failed else "peer",
        times(peer["speedup"]),
        row_interval(peer),
        "",
        number(peer["tokens_per_second"], 1),
        "",
        "",
        "",
    ]
    verdict = str(peer["verdict"])
    return [*(Text(cell, style="dim") for cell in cells), Text(verdict.replace("_", " "), style="dim")]
