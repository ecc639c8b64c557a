"""Measure what drafting is worth on a checkpoint, test that the output is unchanged, and write the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssd_infer.evaluation.runner import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    """Import the runner on first use: the corpus below this package is read without torch."""
    if name != "evaluate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ssd_infer.evaluation.runner import evaluate

    return evaluate
