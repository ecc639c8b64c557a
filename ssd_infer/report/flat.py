"""A report as flat rows and figures, the form in which tracking services take it."""

from __future__ import annotations

from typing import Any

from ssd_infer.jsonio import to_json


def report_table(report: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and one row for each baseline, peer and strategy of a report."""
    columns = ["kind", "name", "params", "status", "verdict", "alpha", "tau", "tokens_per_second", "speedup"]
    rows = [_plain_row("baseline", row) for row in report.get("baselines", [])]
    rows += [_plain_row("peer", row) for row in report.get("peers", [])]
    for row in report.get("strategies", []):
        acceptance, speed = row.get("acceptance") or {}, row.get("speed") or {}
        verdict = (row.get("lossless") or {}).get("verdict")
        cells = [to_json(row.get("params") or {}), row.get("status"), verdict]
        cells += [acceptance.get("alpha"), acceptance.get("tau")]
        rows.append(["strategy", row["name"], *cells, speed.get("tokens_per_second"), speed.get("speedup")])
    return columns, rows


def _plain_row(kind: str, row: dict[str, Any]) -> list[Any]:
    status, verdict = row.get("status", "ok"), row.get("verdict")
    return [
        kind,
        row["name"],
        "{}",
        status,
        verdict,
        None,
        None,
        row.get("tokens_per_second"),
        row.get("speedup"),
    ]


def report_scalars(report: dict[str, Any]) -> dict[str, float]:
    """Return the figures worth a curve: measured speedup and acceptance of every strategy that ran."""
    scalars: dict[str, float] = {}
    for row in report.get("strategies", []):
        acceptance, speed = row.get("acceptance") or {}, row.get("speed") or {}
        found = {
            "speedup": speed.get("speedup"),
            "alpha": acceptance.get("alpha"),
            "tau": acceptance.get("tau"),
        }
        scalars |= {f"report/{row['name']}/{key}": value for key, value in found.items() if value is not None}
    return scalars
