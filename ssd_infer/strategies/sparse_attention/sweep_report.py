"""Show the long-context sweep: throughput by batch × context, acceptance by budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import bytes_text, number, times
from ssd_infer.report.table import Plot, Series, Table

HEAD = (
    "batch",
    "context",
    "decoding",
    "tokens/s",
    "speedup",
    "α",
    "τ",
    "KV read a token",
    "same tokens",
)


def sweep_tables(row: Mapping[str, Any]) -> list[Table]:
    """Return one line a measurement of the row's sweep; nothing without one."""
    lines = tuple(
        (
            cell["batch"],
            cell["context"],
            cell["name"],
            number(cell["tokens_per_second"], 1),
            times(cell["speedup"]),
            number(cell["alpha"]),
            number(cell["tau"]),
            bytes_text(round(cell["kv_bytes_per_token"])),
            cell["verdict"].replace("_", " "),
        )
        for cell in _sweep(row).get("cells", [])
    )
    caption = "From the first token on, all decodings on the same prefilled rows."
    return [Table("Long contexts", HEAD, lines, caption)] if lines else []


def sweep_plots(row: Mapping[str, Any]) -> list[Plot]:
    """Draw tokens a second against batch, one panel a context, and acceptance against the slots read."""
    sweep = _sweep(row)
    return [*_throughput(sweep.get("cells", [])), *_budgets(sweep.get("budgets", []))]


def _sweep(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = row["extra"].get("sweep") or {}
    return found


def _throughput(cells: list[dict[str, Any]]) -> list[Plot]:
    series = []
    for context in sorted({cell["context"] for cell in cells}):
        for name in dict.fromkeys(cell["name"] for cell in cells):
            own = sorted(
                (cell["batch"], cell["tokens_per_second"])
                for cell in cells
                if (cell["name"], cell["context"]) == (name, context)
            )
            if own:
                across, up = zip(*own, strict=True)
                series.append(Series(name, across, up, panel=f"{context} tokens"))
    caption = "From the first token on, all decodings on the same prefilled rows."
    title = "Throughput at long contexts"
    made = Plot(title, "batch", "tokens per second", tuple(series), caption, from_zero=True, listed=False)
    return [made] if series else []


def _budgets(budgets: list[dict[str, Any]]) -> list[Plot]:
    known = [cell for cell in budgets if cell["alpha"] is not None]
    if not known:
        return []
    shares = tuple(100 * cell["params"]["ratio"] for cell in known)
    labels = tuple(f"τ {number(cell['tau'], 1)}" for cell in known)
    series = Series("accepted", shares, tuple(cell["alpha"] for cell in known), labels)
    caption = "Selector pillar, γ = 8, the longest context and smallest batch of the sweep."
    across = "slots read by a draft step (%)"
    return [
        Plot(
            "Acceptance against budget",
            across,
            "accepted (α)",
            (series,),
            caption,
            log_x=True,
            from_zero=True,
        )
    ]
