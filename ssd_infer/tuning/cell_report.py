"""What was measured at one batch and context, as rows of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.tuning.cell import PLAIN, THEIRS, Measured

IDLE = "it drafted nothing"


def cell_report(cell: Sequence[Measured], slot_bytes: int, strict: bool) -> list[dict[str, Any]]:
    """Return JSON-ready rows of one cell: rates, ratios to both plain decodings, acceptance, bytes read, verdict.

    `strict` (float32 and wider): any other token than plain decoding's fails; otherwise the verdict is not run. A draft
    that decodes plainly, or drafted nothing (`plain`), shares plain decoding's figures; what it took itself is
    `own_tokens_per_second`. `verify_ratio` is a verify pass over a plain step.
    """
    peers = {row.name: row for row in cell}
    plain = peers[PLAIN]
    fastest = max(row.rate for row in cell if row.name in (PLAIN, THEIRS))
    their_rate = peers[THEIRS].rate if THEIRS in peers else None
    rows = []
    for row in cell:
        timed = plain if _plain(row) else row
        rows.append(
            _own_facts(row)
            | {
                "tokens_per_second": timed.rate,
                "speedup": timed.rate / fastest,
                "over_plain": timed.rate / plain.rate,
                "over_transformers": None if their_rate is None else timed.rate / their_rate,
                "alpha": timed.alpha,
                "tau": timed.tau,
                "verify_ratio": _ratio(timed.pass_seconds, plain.pass_seconds),
                "kv_bytes_per_token": timed.report.get("kv_bytes_per_token", row.context * slot_bytes),
                "peak_bytes": timed.peak_bytes,
                **_judged(row if row.seconds else plain, plain, strict),
                "own_tokens_per_second": row.rate if row.seconds else None,
                "drafter": row.report,
            }
        )
    return rows


def _own_facts(row: Measured) -> dict[str, Any]:
    """Return who it is, with which parameters, and what has to be said of it."""
    way = row.way
    note = "" if way is None else way.note
    if row.seconds and _plain(row):
        note = f"{IDLE} ({note})" if note else IDLE
    return {
        "name": row.name,
        "batch": row.batch,
        "context": row.context,
        "params": {} if way is None else dict(way.shown),
        "note": note,
        "plain": _plain(row),
        "claimed": way is None or way.claimed,
    }


def _plain(row: Measured) -> bool:
    """Tell whether it is a draft that did not draft."""
    return row.way is not None and not row.drafted


def _ratio(seconds: float | None, unit: float | None) -> float | None:
    return seconds / unit if seconds is not None and unit else None


def _judged(row: Measured, plain: Measured, strict: bool) -> dict[str, Any]:
    """Return how many rows have plain decoding's tokens, as far as both go, and the verdict."""
    pairs = zip(row.tokens, plain.tokens, strict=True)
    equal = sum(mine[: len(other)] == other[: len(mine)] for mine, other in pairs)
    return {"equal": equal, "verdict": "pass" if equal == row.batch else "fail" if strict else "not_run"}
