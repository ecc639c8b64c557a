"""Draw the conclusion of a report: the best strategy, and what a reader must be warned of."""

from __future__ import annotations

from typing import Any

from ssd_infer.evaluation.repetition import LOOP_THRESHOLD
from ssd_infer.report.rows import Row, broken_rows, is_sampled

NOISE = 0.2
"""A measured speedup further than this from the predicted one gets a warning."""


def verdict(strategies: list[Row], peers: list[Row], notes: list[str]) -> dict[str, Any]:
    """Return the report's `verdict`; `notes` are warnings the run itself collected.

    Only rows that passed their losslessness test can win. Greedy rows are the headline unless they loop and sampled
    rows exist.
    """
    passed = [row for row in strategies if row["status"] == "ok" and row["lossless"]["verdict"] == "pass"]
    greedy = [row for row in passed if not is_sampled(row)]
    sampled = [row for row in passed if is_sampled(row)]
    loops = any(_loops(row) for row in greedy)
    pool = (sampled if loops and sampled else greedy) or passed
    best = max(pool, key=lambda row: row["speed"]["speedup"], default=None)
    warnings = [*_failures(strategies), *_loop_warnings(greedy, bool(sampled)), *_peer_warnings(best, greedy, peers), *_misses(passed)]
    if best is not None and best["speed"]["speedup"] <= 1.0:
        warnings.append("no strategy is faster than plain decoding on this checkpoint; decode with draft=None")
    return {
        "best_strategy": best["name"] if best else None,
        "best_params": best["params"] if best else None,
        "speedup": best["speed"]["speedup"] if best else None,
        "warnings": [*warnings, *notes],
        "extra": {"draft": best["extra"]["draft"], "ci95": best["speed"]["ci95"], "against": best["speed"]["against"],
                  "headline": "sampling" if is_sampled(best) else "greedy"} if best else {},
    }  # fmt: skip


def _loops(row: Row) -> bool:
    return bool(row["extra"]["repetition"]["distinct_3"] < LOOP_THRESHOLD)


def _failures(strategies: list[Row]) -> list[str]:
    warnings = []
    for row in broken_rows({"strategies": strategies}):
        if row["status"] == "failed":
            warnings.append(f"{row['name']} failed: {row['reason']}")
        elif row["lossless"]["verdict"] == "fail":
            warnings.append(f"{row['name']} is NOT lossless: {row['lossless']['detail']}")
        else:
            warnings.append(f"{row['name']} was not tested for losslessness: {row['lossless']['detail']}")
    return warnings


def _loop_warnings(greedy: list[Row], sampled: bool) -> list[str]:
    looping = [row for row in greedy if _loops(row)]
    if not looping:
        return []
    share = min(row["extra"]["repetition"]["distinct_3"] for row in looping)
    remedy = "; the sampling rows are the headline" if sampled else "; measure at temperature 1 too"
    return [f"greedy outputs repeat themselves (distinct-3 {share:.2f}), which flatters acceptance and speedup{remedy}"]


def _peer_warnings(best: Row | None, greedy: list[Row], peers: list[Row]) -> list[str]:
    """Say where transformers' prompt lookup is faster than the best strategy, over all prompts and by task."""
    row = best if best is not None and not is_sampled(best) else max(greedy, key=lambda row: row["speed"]["speedup"], default=None)
    lookup = next((peer for peer in peers if peer["name"] == "prompt_lookup" and peer["speedup"] is not None), None)
    if row is None or lookup is None:
        return []
    warnings = []
    if lookup["speedup"] > row["speed"]["speedup"]:
        warnings.append(f"{row['name']} loses to transformers' prompt lookup ({row['speed']['speedup']:.2f}× against {lookup['speedup']:.2f}×)")
    theirs = {task["name"]: task["speedup"] for task in lookup["extra"]["per_task"]}
    warnings += [
        f"{row['name']} loses to transformers' prompt lookup on {task['name']} ({task['speedup']:.2f}× against {theirs[task['name']]:.2f}×)"
        for task in row["per_task"] if len(row["per_task"]) > 1 and theirs.get(task["name"], 0.0) > task["speedup"]
    ]  # fmt: skip
    return warnings


def _misses(rows: list[Row]) -> list[str]:
    warnings = []
    for row in rows:
        measured, predicted = row["speed"]["speedup"], row["speed"]["predicted_speedup"]
        if predicted is not None and abs(measured / predicted - 1) > NOISE:
            warnings.append(f"{row['name']}: measured {measured:.2f}× but its own costs predict {predicted:.2f}×; "
                            "the timing is noisy or time goes where neither drafting nor verifying is")  # fmt: skip
    return warnings
