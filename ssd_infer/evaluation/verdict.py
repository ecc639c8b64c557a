"""Draw the conclusion of a report: the best strategy, and what a reader must be warned of."""

from __future__ import annotations

from typing import Any

from ssd_infer.evaluation.repetition import LOOP_THRESHOLD
from ssd_infer.report.rows import UNRESOLVED, Row, broken_rows, drafts, gains, is_sampled

NOISE = 0.2
"""A measured speedup further than this from the predicted one gets a warning."""
FEW_TASKS = 3
"""Up to so many tasks a peer wins are named one by one."""


def verdict(strategies: list[Row], peers: list[Row], notes: list[str]) -> dict[str, Any]:
    """Return the report's `verdict`; `notes` are warnings the run itself collected.

    Only rows that passed their losslessness test, really drafted, and whose interval lies above 1 can win. Greedy rows
    are the headline, then sampled ones; greedy rows that loop give way to sampled ones even where those win nothing.
    Without a winner plain decoding is the fastest.
    """
    passed = [row for row in strategies if row["status"] == "ok" and row["lossless"]["verdict"] == "pass"]
    greedy = [row for row in passed if not is_sampled(row)]
    sampled = [row for row in passed if is_sampled(row)]
    ordered = [sampled] if sampled and any(_loops(row) for row in greedy) else [greedy, sampled]
    winners = [[row for row in pool if gains(row)] for pool in ordered]
    best = max(next((pool for pool in winners if pool), []), key=_speedup, default=None)
    warnings = [
        *_failures(strategies),
        *_loop_warnings(greedy, bool(sampled)),
        *_peer_warnings(passed, peers),
        *_misses(passed),
    ]
    if best is None and passed:
        left_out = any(row["reason"] and row["reason"].startswith(UNRESOLVED) for row in strategies)
        none = "no strategy that was measured" if left_out else "no strategy"
        warnings.append(f"{none} is faster than plain decoding on this checkpoint; decode with draft=None")
    return {
        "best_strategy": best["name"] if best else None,
        "best_params": best["params"] if best else None,
        "speedup": best["speed"]["speedup"] if best else None,
        "warnings": [*warnings, *notes],
        "extra": {
            "draft": best["extra"]["draft"],
            "ci95": best["speed"]["ci95"],
            "against": best["speed"]["against"],
            "headline": "sampling" if is_sampled(best) else "greedy",
        }
        if best
        else {"plain_is_fastest": bool(passed)},
    }


def _speedup(row: Row) -> float:
    return float(row["speed"]["speedup"])


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
    remedy = "; the sampling rows decide the headline" if sampled else "; measure at temperature 1 too"
    return [
        f"greedy outputs repeat themselves (distinct-3 {share:.2f}), which flatters acceptance and speedup{remedy}"
    ]


def _peer_warnings(rows: list[Row], peers: list[Row]) -> list[str]:
    """Say where transformers' prompt lookup beats the best strategy at the same setting, overall and by task."""
    warnings = []
    for peer in peers:
        name, _, setting = peer["name"].partition(":")
        pool = [row for row in rows if is_sampled(row) == bool(setting) and row["name"].endswith(setting)]
        if name != "prompt_lookup" or peer["speedup"] is None or not pool:
            continue
        warnings += _losses(max(pool, key=_speedup), peer)
    return warnings


def _losses(row: Row, peer: Row) -> list[str]:
    if peer["extra"].get("too_short_to_tell"):
        return []
    edge = 1.0 + (row["extra"].get("noise") or 0.0)
    pairs = [("", row["speed"]["speedup"], peer["speedup"])]
    theirs = {task["name"]: task["speedup"] for task in peer["extra"]["per_task"]}
    if len(theirs) > 1:
        pairs += [(f" on {task['name']}", task["speedup"], theirs[task["name"]]) for task in row["per_task"]]
    loses = f"{row['name']} loses to transformers' prompt lookup"
    lost = [pair for pair in pairs if pair[2] > pair[1] * edge]
    on_tasks = [pair for pair in lost if pair[0]]
    if len(on_tasks) <= FEW_TASKS:
        return [f"{loses}{where} ({ours:.2f}× against {lookup:.2f}×)" for where, ours, lookup in lost]
    where, ours, lookup = max(on_tasks, key=lambda pair: pair[2] / pair[1])
    most = f"most of all{where} ({ours:.2f}× against {lookup:.2f}×)"
    overall = [f"{loses} ({ours:.2f}× against {lookup:.2f}×)" for where, ours, lookup in lost if not where]
    return [*overall, f"{loses} on {len(on_tasks)} of {len(theirs)} tasks, {most}"]


def _misses(rows: list[Row]) -> list[str]:
    warnings = []
    for row in rows:
        measured, predicted = row["speed"]["speedup"], row["speed"]["predicted_speedup"]
        if drafts(row) and predicted and abs(measured / predicted - 1) > NOISE:
            warnings.append(
                f"{row['name']}: measured {measured:.2f}× but its own costs predict {predicted:.2f}×; "
                "the timing is noisy or time goes where neither drafting nor verifying is"
            )
    return warnings
