"""Show the long-context sweep of `sparse_attention`: throughput by batch × context, acceptance by budget."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_infer.report.format import bytes_text, number, percent, readable, times
from ssd_infer.report.rows import Report

SWEEP_HEAD = (
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
COLOURS = {"plain": "#9ca3af", "transformers": "#475569", "sparse_attention": "#2563eb"}


def sweep_of(report: Report) -> dict[str, Any] | None:
    """Return the first row's `extra.sweep` that has cells, or None."""
    sweeps = (row["extra"].get("sweep") for row in report["strategies"])
    return next((sweep for sweep in sweeps if sweep and sweep.get("cells")), None)


def sweep_rows(report: Report) -> list[tuple[object, ...]]:
    """Return one line of text cells under `SWEEP_HEAD` for every measurement of the sweep."""
    sweep = sweep_of(report)
    return [
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
        for cell in (sweep["cells"] if sweep else [])
    ]


def draw_throughput(report: Report) -> Figure | None:
    """Draw tokens a second against batch, one panel a context."""
    sweep = sweep_of(report)
    if sweep is None:
        return None
    cells = sweep["cells"]
    contexts = sorted({cell["context"] for cell in cells})
    figure = Figure(figsize=(1.2 + 2.6 * len(contexts), 3.2))
    panels = figure.subplots(1, len(contexts), squeeze=False)[0]
    for axes, context in zip(panels, contexts, strict=True):
        _panel(axes, [cell for cell in cells if cell["context"] == context])
        axes.set_title(f"{context} tokens", fontsize=10.5)
    panels[0].set_ylabel("tokens per second")
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
    return figure


def _panel(axes: Axes, cells: list[dict[str, Any]]) -> None:
    for name, colour in COLOURS.items():
        own = sorted((cell["batch"], cell["tokens_per_second"]) for cell in cells if cell["name"] == name)
        if own:
            across, up = zip(*own, strict=True)
            axes.plot(
                across, up, marker="o", markersize=4.5, linewidth=1.8, color=colour, label=readable(name)
            )
    batches = sorted({cell["batch"] for cell in cells})
    axes.set_xticks(batches)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch")


def draw_budgets(report: Report) -> Figure | None:
    """Draw acceptance against the share of slots that a draft step reads."""
    sweep = sweep_of(report)
    budgets = [cell for cell in (sweep or {}).get("budgets", []) if cell["alpha"] is not None]
    if not budgets:
        return None
    figure = Figure(figsize=(6.4, 3.2))
    axes = figure.add_subplot()
    shares = [cell["params"]["ratio"] for cell in budgets]
    accepted = [cell["alpha"] for cell in budgets]
    axes.plot(shares, accepted, marker="o", markersize=4.5, linewidth=1.8, color=COLOURS["sparse_attention"])
    for share, alpha, cell in zip(shares, accepted, budgets, strict=True):
        axes.annotate(f"τ {number(cell['tau'], 1)}", (share, alpha), (0, 7), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xticks(shares, [percent(share, 1) for share in shares])
    axes.minorticks_off()
    axes.set(xlabel="slots read by a draft step", ylabel="accepted (α)", ylim=(0, 1.08))
    return figure
