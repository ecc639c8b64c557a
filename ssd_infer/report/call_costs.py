"""Draw v(r): what a call costs with r drafted states, against one with a single state."""

from __future__ import annotations

from matplotlib.figure import Figure

from ssd_infer.report.rows import Report, ok_rows

TITLE = "Cost of a call by its number of states"
CAPTION = (
    "v(r) is the time of a call that evaluates r drafted states ÷ the time with one. "
    "Near the flat line drafted states are free; on the diagonal drafting cannot pay."
)
INK, GREY, BLUE = "#1f2937", "#9ca3af", "#2563eb"


def draw_call_costs(report: Report) -> Figure | None:
    """Draw the first measured curve, one state and r states as the two limits; None without a curve."""
    found = next((row["extra"]["calls"] for row in ok_rows(report) if row["extra"].get("calls")), None)
    if not found or len(found["curve"]) < 2:
        return None
    states = [point["states"] for point in found["curve"]]
    ratios = [point["v"] for point in found["curve"]]
    figure = Figure(figsize=(6.4, 3.6))
    axes = figure.add_subplot()
    top = max(ratios) * 1.25
    axes.plot([1, states[-1]], [1, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.plot([1, states[-1]], [1, states[-1]], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.plot(states, ratios, color=BLUE, marker="o", markersize=4.5, linewidth=1.8)
    for count, ratio in zip(states, ratios, strict=True):
        axes.annotate(
            f"{ratio:.2f}",
            (count, ratio),
            textcoords="offset points",
            xytext=(0, 7),
            ha="center",
            fontsize=9,
            color=INK,
        )
    axes.set(xlabel=f"states r in one call (batch {found['batch']})", ylabel="v(r)", ylim=(0, max(top, 2)))
    axes.set_xticks(states)
    return figure
