"""Draw the report's plots as SVG, from the report's JSON alone and without a display."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_infer.report.format import plain, readable
from ssd_infer.report.plots import draw_plot
from ssd_infer.report.rows import Report, is_sampled, ok_rows
from ssd_infer.report.tables import carried_plots
from ssd_infer.report.task_charts import draw_acceptance, draw_speedups

INK, MUTED, GRID = "#1f2937", "#6b7280", "#e5e7eb"
COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2", "#ca8a04", "#475569")
WIDE = 3
"""Panels from which on a plot needs the whole width of a page."""
MARKERS = ("o", "s", "^", "D")
"""What tells lines apart that share a colour."""
STYLE: Any = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "ssd",
    "text.parse_math": False,
    "svg.fonttype": "path",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot: a title, one sentence on how to read it, and the SVG document."""

    title: str
    caption: str
    svg: str
    wide: bool = False
    """Whether it needs the whole width of a page to be read."""


def draw_charts(report: Report) -> list[Chart]:
    """Draw every plot the report has data for, in reading order."""
    plots: list[tuple[str, str, Callable[[Report], Figure | None]]] = [
        (
            "Speedup over the fastest plain decoding",
            "Bars are measured, whiskers the 95 % interval; 1 is plain decoding.",
            _speedups,
        ),
        (
            "Speedup by task",
            "Blue cells are faster than the fastest plain decoding, red ones slower; each task's fastest is outlined.",
            draw_speedups,
        ),
        (
            "Acceptance by task",
            "α of each row that drafted; each task's highest is outlined.",
            draw_acceptance,
        ),
        (
            "Acceptance by position",
            "How often the k-th drafted token is accepted when verification reaches it.",
            _positions,
        ),
        (
            "Predicted against measured",
            "On the line the cost model is right; below it the decoder is slower than predicted.",
            _scatter,
        ),
        (
            "Loss and agreement per exit layer",
            "Held-out text, teacher forcing: what the model knows after each layer.",
            _quality,
        ),
    ]
    charts = []
    for title, caption, draw in plots:
        with mpl.rc_context(STYLE):
            figure = draw(report)
            if figure is not None:
                charts.append(Chart(title, caption, svg_text(figure)))
    return charts + _carried(report)


def _carried(report: Report) -> list[Chart]:
    """Draw the plots that rows carry as data."""
    charts = []
    for title, plot in carried_plots(report):
        with mpl.rc_context(STYLE):
            svg = svg_text(draw_plot(plot, COLOURS))
        charts.append(Chart(title, plot.caption, svg, len(plot.panels) >= WIDE))
    return charts


def svg_text(figure: Figure) -> str:
    """Return the figure as an SVG document, without a date and with fixed ids."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight", pad_inches=0.08
    )
    return buffer.getvalue()


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def label_text(name: str) -> str:
    """Return an untrusted name as people read it, in one short printable line."""
    text = plain(readable(name))
    return text if len(text) <= 32 else text[:31] + "…"


def legend_beside(axes: Axes, size: int = 9) -> None:
    """Put the legend to the right of the plot, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=size)


def _speedups(report: Report) -> Figure | None:
    bars: list[tuple[str, float, list[float] | None, bool | None]] = [
        (row["name"], row["speed"]["speedup"], row["speed"]["ci95"], is_sampled(row))
        for row in ok_rows(report)
    ]
    bars += [
        (row["name"], row["speedup"], row.get("extra", {}).get("ci95"), None)
        for row in report["peers"]
        if row["speedup"] is not None
    ]
    if not bars:
        return None
    bars.sort(key=lambda bar: bar[1])
    figure, axes = _figure(6.4, 0.9 + 0.34 * len(bars))
    for height, (_, speedup, interval, sampled) in enumerate(bars):
        colour = "#9ca3af" if sampled is None else COLOURS[1 if sampled else 0]
        axes.barh(height, speedup, color=colour, height=0.64, alpha=0.92)
        if interval:
            axes.plot(interval, [height, height], color=INK, linewidth=1.4, solid_capstyle="butt")
        edge = max([speedup, *(interval or [])])
        axes.text(edge + 0.02, height, f" {speedup:.2f}×", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [label_text(bar[0]) for bar in bars])
    axes.axvline(1.0, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, max(max([bar[1], *(bar[2] or [])]) for bar in bars) * 1.14)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("times as fast      blue: greedy · orange: sampling · grey: peers")
    return figure


def _positions(report: Report) -> Figure | None:
    rows = [row for row in ok_rows(report) if row["acceptance"]["per_position"]]
    if not rows:
        return None
    figure, axes = _figure(6.4, 3.6)
    for index, row in enumerate(rows):
        shares = [float("nan") if share is None else share for share in row["acceptance"]["per_position"]]
        axes.plot(
            range(1, len(shares) + 1),
            shares,
            marker=MARKERS[index // len(COLOURS) % len(MARKERS)],
            markersize=4.5,
            linewidth=1.8,
            color=COLOURS[index % len(COLOURS)],
            linestyle="--" if is_sampled(row) else "-",
            label=label_text(row["name"]),
        )
    longest = max(len(row["acceptance"]["per_position"]) for row in rows)
    axes.set(xlabel="draft position k", ylabel="accepted", ylim=(0, 1.02), xlim=(0.75, longest + 0.25))
    axes.set_xticks(range(1, longest + 1, max(1, longest // 8)))
    legend_beside(axes)
    return figure


def _scatter(report: Report) -> Figure | None:
    rows = [
        (row["speed"]["predicted_speedup"], row["speed"]["speedup"], row["name"])
        for row in ok_rows(report)
        if row["speed"]["predicted_speedup"] is not None and not row["extra"].get("fell_back_to_plain")
    ]
    if not rows:
        return None
    values = [value for row in rows for value in row[:2]]
    low, high = min(values) - 0.08, max(values) + 0.08
    figure, axes = _figure(6.4, 4.2)
    axes.plot([low, high], [low, high], color="#9ca3af", linewidth=1, linestyle=(0, (4, 3)))
    for index, (predicted, measured, name) in enumerate(rows):
        axes.scatter(
            [predicted],
            [measured],
            s=52,
            marker=MARKERS[index // len(COLOURS) % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            label=label_text(name),
            zorder=3,
        )
    axes.set(xlabel="predicted speedup", ylabel="measured speedup", xlim=(low, high), ylim=(low, high))
    axes.set_aspect("equal")
    legend_beside(axes)
    return figure


def _quality(report: Report) -> Figure | None:
    exits = [exit_ for exit_ in report["quality"].get("exits") or [] if exit_["loss"] is not None]
    if not exits:
        return None
    layers = [exit_["layer"] for exit_ in exits]
    figure, axes = _figure(6.4, 3.6)
    axes.plot(
        layers, [exit_["loss"] for exit_ in exits], color=COLOURS[0], marker="o", markersize=4, linewidth=1.8
    )
    axes.set_xlabel("layers used")
    axes.set_ylabel("cross-entropy loss (nats per token)", color=COLOURS[0])
    axes.set_xticks(layers[:: max(1, len(layers) // 10)])
    right = axes.twinx()
    right.plot(
        layers,
        [exit_["agreement"] for exit_ in exits],
        color=COLOURS[1],
        marker="s",
        markersize=4,
        linewidth=1.8,
    )
    right.set_ylabel("top-1 agreement with the last layer", color=COLOURS[1])
    right.set_ylim(0, 1.03)
    right.grid(visible=False)
    return figure
