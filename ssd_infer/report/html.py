"""Render `report.html`: one self-contained page, no script, no network; every string of the report is escaped."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_infer.report import tables
from ssd_infer.report.by_task import fastest_table, side_by_side, task_table
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.definitions import DEFINITIONS
from ssd_infer.report.format import (
    TOO_SHORT,
    milliseconds,
    number,
    percent,
    readable,
    row_interval,
    row_params,
    times,
)
from ssd_infer.report.page import render_page
from ssd_infer.report.rows import (
    Report,
    Row,
    broken_rows,
    find_row,
    headline,
    is_sampled,
    lookup_peer,
    noise_rows,
    ok_rows,
    warnings_of,
)
from ssd_infer.report.stream import streams
from ssd_infer.report.table import Table


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure that stands out, and what it is."""

    value: str
    label: str


def render_html(report: Report) -> str:
    """Render the whole report as one HTML document; equal JSON gives equal bytes."""
    measured = tables.strategy_table(report, 4)
    return render_page(
        "report.html.j2",
        "Checkpoint report",
        bad=bool(broken_rows(report)),
        headline=headline(report),
        identity=report["identity"],
        tiles=tiles(report),
        warnings=warnings_of(report),
        choices=choices(report, measured),
        measured=measured,
        failed=tables.absent_table(report, ("failed",)),
        others=tables.absent_table(report, ("not_applicable",)),
        streams=streams(report),
        charts=draw_charts(report),
        lossless=tables.lossless_table(report),
        carried=tables.carried(report, plots=False),
        plain=tables.other_table(report),
        tasks=task_table(report),
        fastest=fastest_table(report),
        side_by_side=side_by_side(report),
        quality=tables.quality_table(report["quality"]),
        protocol=tables.protocol_table(report["protocol"]),
        environment=environment(report),
        definitions=DEFINITIONS,
    )


@dataclass(frozen=True, slots=True)
class Choices:
    """What the reader of a page can choose."""

    sampled: bool
    """Whether there are greedy rows and sampled ones to choose from."""
    orders: tuple[str, ...]


def choices(report: Report, measured: Table) -> Choices:
    """Return the choices that make a difference to the table of strategies."""
    settings = {is_sampled(row) for row in ok_rows(report)}
    titles = tuple(title for title, _ in measured.orders) if len(measured.rows) > 1 else ()
    return Choices(len(settings) > 1, titles)


def tiles(report: Report) -> list[Tile]:
    """Return the figures at the top: those of the best strategy, and the noise of the report."""
    row = find_row(report, report["verdict"]["best_strategy"])
    found = [*_best_tiles(row), *_peer_tiles(report, row)] if row else []
    for again in noise_rows(report):
        facts = again["extra"]["again"]
        value = TOO_SHORT if facts["noise"] is None else f"± {percent(facts['noise'], 1)}"
        found.append(Tile(value, f"noise: {readable(facts['of'])} against itself"))
    return found


def _best_tiles(row: Row) -> list[Tile]:
    speed, acceptance = row["speed"], row["acceptance"]
    verdict = {"pass": "pass", "fail": "FAIL", "not_run": "not run"}[row["lossless"]["verdict"]]
    rate = f"{number(speed['tokens_per_second'], 0)} /s"
    return [
        Tile(times(speed["speedup"]), f"speedup, 95 % {row_interval(row)}"),
        Tile(readable(row["name"]), row_params(row, 3)),
        Tile(verdict, "losslessness test"),
        Tile(rate, f"tokens; predicted {times(speed['predicted_speedup'])}"),
        Tile(number(acceptance["tau"]), f"tokens per verify, α {number(acceptance['alpha'])}"),
        *_latency_tiles(row),
    ]


def _latency_tiles(row: Row) -> list[Tile]:
    waits = row["extra"].get("latency")
    if not waits:
        return []
    between = milliseconds(waits.get("itl_ms_p50"))
    return [Tile(f"{milliseconds(waits['ttft_ms'])} ms", f"to the first token, then {between} ms a token")]


def _peer_tiles(report: Report, row: Row) -> list[Tile]:
    peer = lookup_peer(report, row)
    return [Tile(times(peer["speedup"]), "prompt lookup, same prompts and setting")] if peer else []


def environment(report: Report) -> list[tuple[str, object]]:
    """Return what was measured, by which command, on what."""
    identity = report["identity"]
    facts: list[tuple[str, object]] = [("weights sha256", identity["weights_sha256"])]
    facts += [("command", identity["command"] or "–")]
    if identity["git"]:
        facts += [("git", ", ".join(f"{key} {value}" for key, value in identity["git"].items()))]
    facts += [(key, value) for key, value in report["environment"].items() if key != "extra"]
    return facts + list(report["environment"].get("extra", {}).items())
