"""Show what sparse drafts read at long contexts, and acceptance by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import bytes_text, number
from ssd_infer.report.table import Plot, Series, Table
from ssd_infer.strategies.sparse_attention import SPARSE_ATTENTION

NAME = SPARSE_ATTENTION.name


def read_tables(row: Mapping[str, Any]) -> list[Table]:
    """Return the bytes of cache that the draft and plain decoding read for a token, a line a batch and context."""
    read: dict[tuple[int, int], dict[str, str]] = {}
    for cell in _sweep(row).get("cells", []):
        text = bytes_text(round(cell["kv_bytes_per_token"]))
        read.setdefault((cell["context"], cell["batch"]), {})[cell["name"]] = text
    lines = tuple(
        (context, batch, found["plain"], found[NAME])
        for (context, batch), found in read.items()
        if {"plain", NAME} <= set(found)
    )
    head = ("context", "batch", "plain decoding", "sparse attention")
    caption = "Bytes a row, drafts and verification together."
    return [Table("Cache read for a token", head, lines, caption)] if lines else []


def budget_plots(row: Mapping[str, Any]) -> list[Plot]:
    """Draw acceptance against the slots read."""
    known = [cell for cell in _sweep(row).get("budgets", []) if cell["alpha"] is not None]
    if not known:
        return []
    shares = tuple(100 * cell["params"]["ratio"] for cell in known)
    labels = tuple(f"τ {number(cell['tau'], 1)}" for cell in known)
    series = Series("accepted", shares, tuple(cell["alpha"] for cell in known), labels)
    caption = "Selector pillar, γ = 8, the longest context and smallest batch of the sweep."
    across, up = "slots read by a draft step (%)", "accepted (α)"
    title = "Acceptance against budget"
    return [Plot(title, across, up, (series,), caption, log_x=True, from_zero=True)]


def _sweep(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = row["extra"].get("sweep") or {}
    return found
