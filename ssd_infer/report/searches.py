"""Say what each strategy that leaves layers out searched, what it found, and what came of it."""

from __future__ import annotations

from ssd_infer.report.format import interval, number, times
from ssd_infer.report.rows import Report, Row, ok_rows

HEAD = (
    "strategy",
    "method",
    "set found",
    "search s",
    "tried",
    "α",
    "c",
    "predicted",
    "raced",
    "measured",
    "95 %",
    "outcome",
)


def search_cells(report: Report) -> list[tuple[str, ...]]:
    """Return one line a measured strategy that searched, fastest first; titles are in `HEAD`.

    α, c and the speedup are those of the timed decoding; predicted is what the search promised.
    """
    return [_cells(row) for row in ok_rows(report) if _facts(row)]


def _facts(row: Row) -> Row:
    """Return what a row knows of its search: made beforehand, or inside the decoding."""
    before = row["extra"].get("search") or {}
    inside = row["extra"].get("drafter") or {}
    if before or "search_seconds" not in inside:
        return dict(before)
    return {
        "method": "while decoding",
        "seconds": (row["extra"].get("seconds") or {}).get("search"),
        "candidates": inside.get("trials"),
        "skip_attention": inside.get("skip_attention"),
        "skip_mlp": inside.get("skip_mlp"),
        "predicted_speedup": inside.get("expected_speedup"),
    }


def _cells(row: Row) -> tuple[str, ...]:
    facts, speed = _facts(row), row["speed"]
    seconds = facts.get("seconds")
    tried = facts.get("candidates")
    return (
        row["name"],
        str(facts.get("method") or "–"),
        _set(facts),
        number(seconds, 1),
        "–" if tried is None else str(tried),
        number(row["acceptance"]["alpha"]),
        number(row["cost"]["draft_ratio_c"]),
        times(facts.get("predicted_speedup")),
        times(facts.get("raced_speedup")),
        times(speed["speedup"]),
        interval(speed["ci95"]),
        _outcome(row),
    )


def _set(facts: Row) -> str:
    """Count what is skipped; the lists themselves are in the JSON."""
    attention, mlp = facts.get("skip_attention"), facts.get("skip_mlp")
    if attention is None or mlp is None:
        return "–"
    return f"{len(attention)} attention, {len(mlp)} MLP"


def _outcome(row: Row) -> str:
    if row["extra"].get("fell_back_to_plain"):
        return "plain decoding"
    note = (row["extra"].get("drafter") or {}).get("note")
    return str(note) if note else "drafts"
