"""Show what a strategy that leaves layers out searched, what it found, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import interval, number, times
from ssd_infer.report.table import Table
from ssd_infer.strategies.head_report import HEAD_FACTS

TITLE = "Searches for layers to leave out"
CAPTION = (
    "α, c and the measured speedup are those of the timed decoding; predicted is what the search promised."
)
HEAD = (
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


def search_tables(row: Mapping[str, Any]) -> list[Table]:
    """Return one line for a measured row that searched; nothing otherwise."""
    facts = _facts(row)
    return [Table(TITLE, HEAD, (_cells(row, facts),), CAPTION)] if facts and row["status"] == "ok" else []


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row knows of its search: made beforehand, or inside the decoding."""
    searched = row["extra"].get("search") or {}
    before = {key: value for key, value in searched.items() if key != HEAD_FACTS}
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


def _cells(row: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, ...]:
    speed, tried = row["speed"], facts.get("candidates")
    return (
        str(facts.get("method") or "–"),
        _set(facts),
        number(facts.get("seconds"), 1),
        "–" if tried is None else str(tried),
        number(row["acceptance"]["alpha"]),
        number(row["cost"]["draft_ratio_c"]),
        times(facts.get("predicted_speedup")),
        times(facts.get("raced_speedup")),
        times(speed["speedup"]),
        interval(speed["ci95"]),
        _outcome(row),
    )


def _set(facts: Mapping[str, Any]) -> str:
    """Count what is skipped; the lists themselves are in the JSON."""
    attention, mlp = facts.get("skip_attention"), facts.get("skip_mlp")
    if attention is None or mlp is None:
        return "–"
    return f"{len(attention)} attention, {len(mlp)} MLP"


def _outcome(row: Mapping[str, Any]) -> str:
    if row["extra"].get("fell_back_to_plain"):
        return "plain decoding"
    note = (row["extra"].get("drafter") or {}).get("note")
    return str(note) if note else "drafts"
