"""Render a comparison as one self-contained page with the lines over the steps."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ssd_infer.report.charts import COLOURS, STYLE, Chart, label_text, legend_beside, svg_text
from ssd_infer.report.comparison_text import strategy_table, summary_table, worse_lines
from ssd_infer.report.format import readable
from ssd_infer.report.page import render_page

TITLE = "Comparison of checkpoint reports"


def render_comparison_html(comparison: dict[str, Any]) -> str:
    """Render summary, plots, strategies and regressions; equal comparisons give equal bytes."""
    return render_page(
        "comparison.html.j2",
        TITLE,
        headline=_headline(comparison),
        summaries=summary_table(comparison),
        charts=step_charts(comparison.get("series")),
        strategies=strategy_table(comparison),
        first=comparison["labels"][0],
        worse=worse_lines(comparison),
        notes=[*comparison["remarks"], *comparison.get("failures", [])],
    )


def step_charts(series: dict[str, Any] | None) -> list[Chart]:
    """Draw speedup, α and loss against the step; nothing without a series."""
    if not series:
        return []
    charts = []
    with mpl.rc_context(STYLE):
        for key, title, caption in (
            (
                "speedup",
                "Speedup",
                "Over the fastest plain decoding of the same checkpoint; 1 is plain decoding.",
            ),
            ("alpha", "Acceptance α", "Accepted ÷ drafted."),
        ):
            if series[key]:
                drawn = _lines(series["steps"], series[key], title, key == "speedup")
                charts.append(Chart(title, caption, svg_text(drawn)))
        if any(loss is not None for loss in series["loss"]):
            figure = _lines(series["steps"], {"held-out loss": series["loss"]}, "nats per token")
            charts.append(Chart("Held-out loss", "Last layer, teacher forcing.", svg_text(figure)))
    return charts


def _lines(
    steps: list[int], lines: dict[str, list[float | None]], label: str, unit_line: bool = False
) -> Figure:
    figure = Figure(figsize=(6.4, 3.4))
    axes = figure.add_subplot()
    for index, (name, values) in enumerate(lines.items()):
        heights = [float("nan") if value is None else value for value in values]
        axes.plot(
            steps,
            heights,
            marker="o",
            markersize=4.5,
            linewidth=1.8,
            color=COLOURS[index % len(COLOURS)],
            label=label_text(name),
        )
    if unit_line:
        axes.axhline(1.0, color="#6b7280", linewidth=1, linestyle=(0, (4, 3)))
    axes.set(xlabel="step", ylabel=label)
    axes.set_xticks(steps if len(steps) <= 10 else steps[:: len(steps) // 8])
    legend_beside(axes)
    return figure


def _headline(comparison: dict[str, Any]) -> str:
    entries = [
        (entry["speedup"], label, entry["best"])
        for label, entry in zip(comparison["labels"], comparison["summaries"], strict=True)
        if entry["speedup"] is not None
    ]
    if not entries:
        return "No strategy could be measured on these checkpoints."
    speedup, label, best = max(entries, key=lambda entry: entry[0])
    return f"{label} decodes fastest relative to plain decoding: {speedup:.2f}× with {readable(best)}."
