"""Set reports side by side and name what got worse, from their JSON alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ssd_infer.report.rows import Report, Row, find_row, plain_rows

SPEED_DROP, ALPHA_DROP, LOSS_RISE = 0.05, 0.02, 0.01
"""Relative loss of speed (where an interval is missing), absolute loss of α, relative rise of the held-out loss."""


def compare(reports: Sequence[Report], labels: Sequence[str] | None = None) -> dict[str, Any]:
    """Return rows by strategy with one cell a report, and the regressions of each report against the first.

    Raises ValueError when `labels` does not name every report.
    """
    names = list(labels) if labels else label_reports(reports)
    if len(names) != len(reports):
        raise ValueError(f"{len(names)} labels for {len(reports)} reports")
    strategies = list(dict.fromkeys(row["name"] for report in reports for row in report["strategies"]))
    return {
        "labels": names,
        "summaries": [summary(report) for report in reports],
        "rows": [
            {"name": name, "cells": [_cell(find_row(report, name)) for report in reports]}
            for name in strategies
        ],
        "regressions": [
            line
            for name, report in list(zip(names, reports, strict=True))[1:]
            for line in regressions(reports[0], report, name)
        ],
        "remarks": remarks(reports),
    }


def label_reports(reports: Sequence[Report]) -> list[str]:
    """Name each report by its checkpoint folder, longer where that is ambiguous, numbered where nothing helps."""
    paths = [PurePath(report["identity"]["checkpoint"]).parts for report in reports]
    for depth in (1, 2, 3, 4):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{number}: {'/'.join(parts[-1:])}" for number, parts in enumerate(paths, 1)]


def summary(report: Report) -> dict[str, Any]:
    """Return the figures one line of a comparison needs."""
    quality, verdict = report["quality"], report["verdict"]
    plain = max((row["tokens_per_second"] or 0.0 for row in plain_rows(report)), default=0.0)
    return {
        "checkpoint": report["identity"]["checkpoint"],
        "recipe": report["identity"]["recipe"],
        "step": report["identity"]["step"],
        "best": verdict["best_strategy"],
        "speedup": verdict["speedup"],
        "plain_tokens_per_second": plain or None,
        "loss": quality.get("loss"),
        "warnings": len(verdict["warnings"]),
    }


def regressions(before: Report, after: Report, label: str) -> list[str]:
    """Say what got worse from `before` to `after`, one sentence each."""
    found = []
    for old in before["strategies"]:
        if old["status"] == "ok":
            found += _worse(old, find_row(after, old["name"]))
    old_loss, new_loss = before["quality"].get("loss"), after["quality"].get("loss")
    if old_loss and new_loss and new_loss > old_loss * (1 + LOSS_RISE):
        found.append(f"held-out loss rose from {old_loss:.3f} to {new_loss:.3f}")
    return [f"{label}: {line}" for line in found]


def remarks(reports: Sequence[Report]) -> list[str]:
    """Say why figures may not be comparable: other machine, precision, prompts or batch size."""
    facts = {
        "machine": [
            (r["environment"]["device"], r["environment"]["cpu"], r["environment"]["threads"])
            for r in reports
        ],
        "precision": [r["environment"]["dtype"] for r in reports],
        "prompts": [
            [(t["name"], t.get("extra", {}).get("prompts_sha256")) for t in r["protocol"]["tasks"]]
            for r in reports
        ],
        "batch size": [r["protocol"]["batch_size"] for r in reports],
        "output length": [[t["new_tokens"] for t in r["protocol"]["tasks"]] for r in reports],
    }
    return [
        f"these reports differ in their {name}"
        for name, values in facts.items()
        if any(value != values[0] for value in values)
    ]


def _worse(old: Row, new: Row | None) -> list[str]:
    if new is None or new["status"] != "ok":
        now = "missing" if new is None else new["status"].replace("_", " ")
        return [f"{old['name']} was measured before and is now {now}"]
    found = []
    if old["lossless"]["verdict"] == "pass" != new["lossless"]["verdict"]:
        now = new["lossless"]["verdict"].replace("_", " ")
        found.append(f"{old['name']} passed its losslessness test before and now says {now}")
    if _slower(old["speed"], new["speed"]):
        found.append(
            f"{old['name']} speedup fell from {old['speed']['speedup']:.2f}× to {new['speed']['speedup']:.2f}×"
        )
    before, after = old["acceptance"]["alpha"], new["acceptance"]["alpha"]
    if before is not None and after is not None and after < before - ALPHA_DROP:
        found.append(f"{old['name']} α fell from {before:.2f} to {after:.2f}")
    return found


def _slower(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Tell whether the intervals are apart; without intervals, whether the drop exceeds `SPEED_DROP`."""
    if old["ci95"] and new["ci95"]:
        return bool(new["ci95"][1] < old["ci95"][0])
    return bool(new["speedup"] < old["speedup"] * (1 - SPEED_DROP))


def _cell(row: Row | None) -> dict[str, Any]:
    if row is None:
        return {
            "status": "missing",
            "speedup": None,
            "ci95": None,
            "alpha": None,
            "tau": None,
            "verdict": None,
            "params": {},
        }
    return {
        "status": row["status"],
        "speedup": row["speed"]["speedup"],
        "ci95": row["speed"]["ci95"],
        "alpha": row["acceptance"]["alpha"],
        "tau": row["acceptance"]["tau"],
        "verdict": row["lossless"]["verdict"],
        "params": row["params"],
    }
