"""Render `report.html`: one self-contained page, no script, no network; every string of the report is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any

from ssd_infer.report.charts import Chart, draw_charts
from ssd_infer.report.definitions import DEFINITIONS
from ssd_infer.report.format import (
    bytes_text,
    cell_text,
    interval,
    number,
    percent,
    plain,
    row_interval,
    row_params,
    times,
)
from ssd_infer.report.rows import (
    STATUS_TEXT,
    Report,
    Row,
    all_rows,
    broken_rows,
    find_row,
    headline,
    lookup_peer,
    noise_line,
    noise_rows,
    ok_rows,
    other_rows,
    plain_rows,
)
from ssd_infer.report.table import Table, tables_of


def text(value: object) -> str:
    """Escape untrusted text for HTML content and attributes, flattened to one line."""
    return escape(plain(value), quote=True)


def page(title: str, body: str) -> str:
    """Wrap `body` (already HTML) into a complete document with the package's style sheet."""
    style = resources.files("ssd_infer.report").joinpath("style.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'\"><title>{text(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def html_table(head: Iterable[str], rows: Iterable[str], numeric: range = range(0)) -> str:
    """Draw a table from plain titles and ready `<tr>` strings; titles at the `numeric` indices are right-aligned."""
    titles = "".join(
        f"<th{' class=n' if i in numeric else ''}>{text(title)}</th>" for i, title in enumerate(head)
    )
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def table_row(cells: Iterable[object], numeric_from: int = 99, kind: str = "") -> str:
    """Draw one `<tr>` from untrusted values; the first cell is the name."""
    drawn = []
    for index, cell in enumerate(cells):
        style = ' class="name"' if index < 1 or (index == 1 < numeric_from) else ""
        style = ' class="n"' if index >= numeric_from else style
        drawn.append(f"<td{style}>{text(cell)}</td>")
    return f'<tr class="{kind}">{"".join(drawn)}</tr>' if kind else f"<tr>{''.join(drawn)}</tr>"


def render_html(report: Report) -> str:
    """Render the whole report as one HTML document; equal JSON gives equal bytes."""
    parts = [
        _hero(report),
        _warnings(report["verdict"]["warnings"]),
        _section("Strategies", _strategies(report)),
        _section("Plots", figures(draw_charts(report))),
        _section("Losslessness", _lossless(report)),
        *_carried(report),
        '<div class="two">'
        + _section("Plain decoding and peers", _others(report))
        + _section("By task", _tasks(report))
        + "</div>",
        _section("Quality of the checkpoint", _quality(report["quality"])),
        '<div class="two">'
        + _section("Protocol", _protocol(report["protocol"]))
        + _section("Identity and environment", _environment(report))
        + "</div>",
        _section("Definitions", definitions()),
    ]
    return page("Checkpoint report", "\n".join(part for part in parts if part))


def figures(charts: Iterable[Chart]) -> str:
    """Embed charts as images: an image cannot run a script, whatever a label says."""
    drawn = []
    for chart in charts:
        data = base64.b64encode(chart.svg.encode()).decode()
        drawn.append(
            f"<figure><h3>{text(chart.title)}</h3><figcaption>{text(chart.caption)}</figcaption>"
            f'<img alt="{text(chart.title)}" src="data:image/svg+xml;base64,{data}"></figure>'
        )
    return f'<div class="plots">{"".join(drawn)}</div>' if drawn else '<p class="muted">Nothing to plot.</p>'


def definitions() -> str:
    """Draw the definitions every report prints."""
    return (
        "<dl>"
        + "".join(f"<dt>{text(name)}</dt><dd>{text(meaning)}</dd>" for name, meaning in DEFINITIONS)
        + "</dl>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{text(title)}</h2>{body}</section>"


def badge(kind: str, label: str) -> str:
    """Draw a coloured pill; `kind` is one of the schema's own words."""
    return f'<span class="badge {text(kind)}">{text(label)}</span>'


def _tile(value: str, label: str) -> str:
    return f'<div class="tile"><b>{text(value)}</b><span>{text(label)}</span></div>'


def _hero(report: Report) -> str:
    identity, verdict = report["identity"], report["verdict"]
    row = find_row(report, verdict["best_strategy"])
    step = "" if identity["step"] is None else f", step {identity['step']}"
    tiles = [*_best_tiles(row), *_peer_tiles(report, row)] if row else []
    tiles += [_noise_tile(again) for again in noise_rows(report)]
    state = "hero bad" if broken_rows(report) else "hero"
    return (
        f'<div class="{state}"><h1>Checkpoint report</h1><p class="say">{text(headline(report))}</p>'
        f'<p class="muted"><code>{text(identity["checkpoint"])}</code> · recipe {text(identity["recipe"] or "unknown")}'
        f'{text(step)}</p><div class="tiles">{"".join(tiles)}</div></div>'
    )


def _noise_tile(row: Row) -> str:
    again = row["extra"]["again"]
    return _tile(f"± {percent(again['noise'], 1)}", f"noise: {again['of']} against itself")


def _best_tiles(row: Row) -> list[str]:
    speed, acceptance = row["speed"], row["acceptance"]
    return [
        _tile(times(speed["speedup"]), f"speedup, 95 % {row_interval(row)}"),
        _tile(row["name"], row_params(row)),
        _tile(
            {"pass": "pass", "fail": "FAIL", "not_run": "not run"}[row["lossless"]["verdict"]],
            "losslessness test",
        ),
        _tile(
            f"{number(speed['tokens_per_second'], 0)} /s",
            f"tokens; predicted {times(speed['predicted_speedup'])}",
        ),
        _tile(number(acceptance["tau"]), f"tokens per verify, α {number(acceptance['alpha'])}"),
    ]


def _peer_tiles(report: Report, row: Row) -> list[str]:
    peer = lookup_peer(report, row)
    return [_tile(times(peer["speedup"]), "prompt lookup, same prompts and setting")] if peer else []


def _warnings(warnings: list[str]) -> str:
    if not warnings:
        return ""
    return (
        '<section class="warnings"><h2>Warnings</h2><ul>'
        + "".join(f"<li>{text(w)}</li>" for w in warnings)
        + "</ul></section>"
    )


def _strategies(report: Report) -> str:
    head = (
        "strategy",
        "parameters",
        "lossless",
        "speedup",
        "95 %",
        "predicted",
        "tokens/s",
        "α",
        "τ",
        "c",
        "v",
        "distinct-3",
        "memory",
    )
    best = report["verdict"]["best_strategy"]
    rows = [_measured(row, row["name"] == best) for row in ok_rows(report)]
    rows += [_unmeasured(row, len(head)) for row in other_rows(report)]
    return html_table(head, rows, range(3, len(head)))


def _measured(row: Row, best: bool) -> str:
    speed, cost, acceptance = row["speed"], row["cost"], row["acceptance"]
    numbers = (
        times(speed["speedup"]),
        row_interval(row),
        times(speed["predicted_speedup"]),
        number(speed["tokens_per_second"], 1),
        number(acceptance["alpha"]),
        number(acceptance["tau"]),
        number(cost["draft_ratio_c"]),
        number(cost["verify_ratio"]),
        number(row["extra"].get("repetition", {}).get("distinct_3")),
        bytes_text(row["memory"]["extra_bytes"]),
    )
    verdict = row["lossless"]["verdict"]
    params = f'<td title="{text(row["params"])}">{text(row_params(row, 4))}</td>'
    cells = f'<td class="name">{text(row["name"])}</td>{params}'
    cells += f"<td>{badge(verdict, verdict.replace('_', ' '))}</td>"
    cells += "".join(f'<td class="n">{text(value)}</td>' for value in numbers)
    return f"<tr{' class=best' if best else ''}>{cells}</tr>"


def _unmeasured(row: Row, width: int) -> str:
    state = badge(row["status"], STATUS_TEXT[row["status"]])
    return (
        f'<tr class="off"><td class="name">{text(row["name"])}</td><td>{state}</td>'
        f'<td colspan="{width - 2}">{text(row["reason"])}</td></tr>'
    )


def _lossless(report: Report) -> str:
    rows = []
    for row in ok_rows(report):
        verdict = row["lossless"]["verdict"]
        claim = "lossless" if row["lossless"]["claimed"] else "lossy by design"
        rows.append(
            f'<tr><td class="name">{text(row["name"])}</td><td>{badge(verdict, verdict.replace("_", " "))}</td>'
            f'<td class="flat">{claim}</td>'
            f"<td>{text(row['lossless']['detail'])}</td></tr>"
        )
    return html_table(("strategy", "verdict", "claims", "test in this run"), rows)


def _carried(report: Report) -> list[str]:
    """Draw the tables that rows carry as data, one section each."""
    return [
        _section(f"{name}: {table.title}", carried_table(table))
        for name, table in tables_of(all_rows(report))
    ]


def carried_table(table: Table) -> str:
    """Draw a table that a report carries as data; numbers stand on the right."""
    numeric = [
        all(not isinstance(row[index], str) for row in table.rows) for index in range(len(table.columns))
    ]
    head = "".join(
        f"<th{' class=n' if right else ''}>{text(title)}</th>"
        for title, right in zip(table.columns, numeric, strict=True)
    )
    rows = [
        "<tr>"
        + "".join(
            f"<td{' class=n' if right else ''}>{text(cell_text(cell))}</td>"
            for cell, right in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for row in table.rows
    ]
    caption = f'<p class="muted">{text(table.caption)}</p>' if table.caption else ""
    body = "".join(rows)
    return f'{caption}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _others(report: Report) -> str:
    rows = [
        table_row((row["name"], number(row["tokens_per_second"], 1), "–"), 1).replace(
            "</tr>", "<td>plain decoding</td></tr>"
        )
        for row in plain_rows(report)
    ]
    rows += [
        f'<tr><td class="name">{text(row["name"])}</td><td class="n">{number(row["tokens_per_second"], 1)}</td>'
        f'<td class="n">{times(row["extra"]["again"]["speedup"])}</td><td>{text(noise_line(row))}</td></tr>'
        for row in noise_rows(report)
    ]
    for row in report["peers"]:
        remark = row.get("extra", {}).get("reason") or (
            f"95 % {row_interval(row)}; same tokens: {row['verdict'].replace('_', ' ')}"
        )
        rows.append(
            f'<tr><td class="name">{text(row["name"])}</td><td class="n">{number(row["tokens_per_second"], 1)}</td>'
            f'<td class="n">{times(row["speedup"])}</td><td>{text(remark)}</td></tr>'
        )
    return html_table(("name", "tokens/s", "speedup", "remark"), rows, range(1, 3))


def _tasks(report: Report) -> str:
    rows = [
        table_row(
            (
                row["name"],
                task["name"],
                times(task["speedup"]),
                interval(task["ci95"]),
                number(task["alpha"]),
                number(task["tau"]),
            ),
            2,
        )
        for row in ok_rows(report)
        for task in row["per_task"]
    ]
    return html_table(("strategy", "task", "speedup", "95 %", "α", "τ"), rows, range(2, 6))


def _quality(quality: dict[str, Any]) -> str:
    exits = quality.get("exits") or []
    if not exits:
        return f'<p class="muted">{text(quality.get("reason") or "Not measured.")}</p>'
    rows = [
        table_row(
            (
                exit_["layer"],
                number(exit_["loss"], 3),
                number(exit_["perplexity"], 1),
                percent(exit_["agreement"]),
            ),
            1,
        )
        for exit_ in exits
    ]
    where = quality.get("source", "unknown")
    note = f"{quality.get('tokens', 0)} held-out tokens ({where}); the last row is the whole model."
    return f'<p class="muted">{text(note)}</p>' + html_table(
        ("layers", "loss", "perplexity", "agreement"), rows, range(1, 4)
    )


def _protocol(protocol: dict[str, Any]) -> str:
    facts: list[tuple[str, object]] = [
        (
            f"task {task['name']}",
            f"{task['samples']} prompts of {task['prompt_tokens']} tokens, {task['new_tokens']} new; "
            f"hash {task.get('extra', {}).get('prompts_sha256', '')[:12]}",
        )
        for task in protocol["tasks"]
    ]
    facts += [("batch size", protocol["batch_size"]), ("repeats", protocol["repeats"])]
    facts += [("sampling", ", ".join(f"{key} {value}" for key, value in protocol["sampling"].items()))]
    facts += [("timer", protocol["timer"])]
    return _facts(facts)


def _environment(report: Report) -> str:
    identity = report["identity"]
    facts: list[tuple[str, object]] = [("weights sha256", identity["weights_sha256"])]
    facts += [("command", identity["command"] or "–")]
    if identity["git"]:
        facts += [("git", ", ".join(f"{key} {value}" for key, value in identity["git"].items()))]
    facts += [(key, value) for key, value in report["environment"].items() if key != "extra"]
    facts += list(report["environment"].get("extra", {}).items())
    return _facts(facts)


def _facts(facts: Iterable[tuple[str, object]]) -> str:
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts) + "</dl>"
