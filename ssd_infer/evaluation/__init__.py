"""Measure what drafting is worth on a checkpoint, test that the output is unchanged, and write the report."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ssd_infer.config.evaluation import EvalSettings

__all__ = ["evaluate", "report_folder"]


def evaluate(settings: EvalSettings, say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Evaluate `settings.checkpoint` as its kind demands, write the report files, and return the report.

    The story imports torch and is imported here, so that this package can be asked where a report goes without.
    """
    runner = import_module("ssd_infer.evaluation.runner")
    return cast("dict[str, Any]", runner.evaluate(settings, say))


def report_folder(settings: EvalSettings) -> Path:
    """Return where the report goes: `out`, or `report/` inside the checkpoint, or inside the adapter it is about."""
    return Path(settings.out) if settings.out else Path(settings.adapter or settings.checkpoint) / "report"
