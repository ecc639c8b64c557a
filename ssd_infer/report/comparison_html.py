"""Render a comparison as one self-contained page with the lines over the steps."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ssd_infer.report.charts import COLOURS, STYLE, Chart, label_text, svg_text
from ssd_infer.report.comparison_text import SUMMARY_HEAD, cell_text, summary_cells, visible_rows
from ssd_infer.report.html import figures, html_table, page, table_row, text


def render_comparison_html(comparison: dict[str, Any]) -> str:
    """Render summary, plots, strategies and regressions; equal comparisons give equal bytes."""
    pairs = zip(comparison["labels"], comparison["summaries"], strict=True)
    summaries = html_table(SUMMARY_HEAD, [table_row(summary_cells(label, entry)) for label, entry in pairs])
    rows = [
        table_row([row["name"], *(cell_text(cell) for cell in row["cells"])])
        for row in visible_rows(comparison)
    ]
    strategies = html_table(("strategy", *comparison["labels"]), rows)
    worse = "".join(f"<li>{text(line)}</li>" for line in comparison["regressions"])
    parts = [
        '<div class="hero"><h1>Comparison of checkpoint reports</h1>'
        f'<p class="say">{text(_headline(comparison))}</p></div>',
        f"<section><h2>Checkpoints</h2>{summaries}</section>",
        f"<section><h2>Over the steps</h2>{figures(step_charts(comparison.get('series')))}</section>",
        '<section><h2>Strategies</h2><p class="muted">Speedup over plain decoding, its 95 % interval, and α.</p>'
        f"{strategies}</section>",
        f"<section><h2>Regressions against {text(comparison['labels'][0])}</h2>"
        + (f"<ul>{worse}</ul>" if worse else '<p class="muted">None.</p>')
        + "</section>",
    ]
    notes = [*comparison["remarks"], *comparison.get("failures", [])]
    if notes:
        parts.append(
            '<section class="warnings"><h2>Read with care</h2><ul>'
            + "".join(f"<li>{text(n)}</li>" for n in notes)
            + "</ul></section>"
        )
    return page("Comparison of checkpoint reports", "\n".join(parts))


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
                charts.append(
                    Chart(
                        title,
                        caption,
                        svg_text(_lines(series["steps"], series[key], title, key == "speedup")),
                    )
                )
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
    axes.legend(fontsize=9)
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
    return f"{label} decodes fastest relative to plain decoding: {speedup:.2f}× with {best}."
