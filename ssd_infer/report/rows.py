"""Read a report: the questions that the renderers, the comparison and the exit code all ask."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
Report = dict[str, Any]

VERDICT_TEXT = {"pass": "lossless", "fail": "NOT lossless", "not_run": "not tested"}
STATUS_TEXT = {"ok": "ok", "not_applicable": "not applicable", "failed": "failed"}


def is_sampled(row: Row) -> bool:
    """Tell whether a row was decoded by sampling (its name carries the `t…` variant)."""
    return any(part[:1] == "t" and part[1:2].isdigit() for part in row["name"].split(":")[1:])


def lookup_peer(report: Report, row: Row) -> Row | None:
    """Return transformers' prompt lookup at the setting of `row`, or None when it was not measured."""
    setting = f":{row['name'].rpartition(':')[2]}" if is_sampled(row) else ""
    return next(
        (p for p in report["peers"] if p["name"] == f"prompt_lookup{setting}" and p["speedup"] is not None),
        None,
    )


def ok_rows(report: Report) -> list[Row]:
    """Return the strategy rows that were measured, fastest first (ties by name)."""
    rows = [row for row in report["strategies"] if row["status"] == "ok"]
    return sorted(rows, key=lambda row: (-row["speed"]["speedup"], row["name"]))


def other_rows(report: Report) -> list[Row]:
    """Return the rows with a reason instead of figures, in report order."""
    return [row for row in report["strategies"] if row["status"] != "ok"]


def find_row(report: Report, name: str | None) -> Row | None:
    """Return the strategy row called `name`, or None."""
    return next((row for row in report["strategies"] if row["name"] == name), None)


def broken_rows(report: Report) -> list[Row]:
    """Return the rows that promise losslessness and did not prove it, failed ones included."""
    return [
        row
        for row in report["strategies"]
        if row["status"] != "not_applicable"
        and row["lossless"]["claimed"]
        and row["lossless"]["verdict"] != "pass"
    ]


def exit_code(report: Report) -> int:
    """Return 0 only if every row that claims to be lossless passed its test in this run, else 1."""
    return 1 if broken_rows(report) else 0


def headline(report: Report) -> str:
    """Say the verdict in one sentence, from the report's own fields, and what the run found beside it."""
    also = report["verdict"].get("extra", {}).get("also")
    return f"{_headline(report)} {also}" if also else _headline(report)


def _headline(report: Report) -> str:
    verdict = report["verdict"]
    row = find_row(report, verdict["best_strategy"])
    if row is None:
        return "No draft strategy could be measured on this checkpoint."
    state = VERDICT_TEXT[row["lossless"]["verdict"]]
    low = (row["speed"]["ci95"] or [None])[0]
    if row["extra"].get("fell_back_to_plain"):
        return f"No draft pays here: every strategy decodes plainly on this checkpoint ({state})."
    if row["speed"]["speedup"] <= 1.0:
        return f"No draft pays here: the best, {row['name']}, is no faster than plain decoding ({state})."
    if low is not None and low <= 1.0:
        return f"{row['name']} may be faster, but its interval reaches 1 ({state})."
    how = "sampling, " if is_sampled(row) else ""
    return (
        f"{row['name']} decodes {row['speed']['speedup']:.2f} times as fast as plain decoding ({how}{state})."
    )
