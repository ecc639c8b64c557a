"""What a lossy row carries instead of a losslessness proof: agreement, KL and share of the uncompared tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def pooled(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Pool what the drafter said of each call about tokens emitted uncompared; empty when nobody said anything."""
    told = [report for report in reports if "skipped" in report]
    emitted = sum(report["emitted"] for report in told)
    skipped = sum(report["skipped"] for report in told)
    if not told or not emitted:
        return {}
    measured = [report for report in told if report["skipped"]]
    agreed = sum(report["agreement"] * report["skipped"] for report in measured)
    kl = sum(report["kl"] * report["skipped"] for report in measured)
    return {
        "emitted": emitted,
        "skipped": skipped,
        "skipped_share": skipped / emitted,
        "agreement": agreed / skipped if skipped else None,
        "kl": kl / skipped if skipped else None,
        "disagreement": (skipped - agreed) / emitted,
    }
