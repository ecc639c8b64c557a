"""Draw word error rate against speed: every pair of thresholds on the dev set, and what was chosen."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_infer.report.format import readable
from ssd_infer.report.rows import Report

ROWS = {
    "ctc_draft": ("ctc_draft", "#ea580c", "D"),
    "ctc_draft:same_wer": ("same_wer", "#059669", "s"),
    "ctc_draft:best_wer": ("best_wer", "#9333ea", "^"),
    "ctc_draft:lossless": ("lossless", "#2563eb", "o"),
    "ctc_draft:ctc_only": ("ctc_only", "#6b7280", "v"),
}
"""Row → label, colour, marker."""


def curve_of(report: Report) -> dict[str, Any] | None:
    """Return the calibration curve of a speech report, or None."""
    curves = (row["extra"].get("calibration") for row in report["strategies"])
    return next((curve for curve in curves if curve and curve.get("points")), None)


def draw_wer_speed(report: Report) -> Figure | None:
    """Draw both panels, predicted on the dev set and measured on the others; None without a curve."""
    curve = curve_of(report)
    if curve is None:
        return None
    figure = Figure(figsize=(6.4, 7.2))
    above, below = figure.subplots(2, 1)
    _predicted(above, curve)
    _measured(below, report)
    figure.subplots_adjust(hspace=0.36)
    return figure


def _predicted(axes: Axes, curve: dict[str, Any]) -> None:
    points = curve["points"]
    axes.scatter(
        [point["speedup"] for point in points],
        [100 * point["wer"] for point in points],
        s=9,
        color="#9ca3af",
        label="a pair of thresholds",
    )
    best = _front(points)
    axes.plot(
        [point["speedup"] for point in best],
        [100 * point["wer"] for point in best],
        color="#2563eb",
        linewidth=1.8,
        marker="o",
        markersize=3.5,
        label="none better in both",
    )
    plain, allowed = 100 * curve["plain_wer"], 100 * curve["plain_wer"] * (1 + curve["increase"])
    axes.axhline(plain, color="#1f2937", linewidth=1, linestyle=(0, (4, 3)), label="plain decoding")
    label = f"+{100 * curve['increase']:.0f} % relative"
    axes.axhline(allowed, color="#ea580c", linewidth=1, linestyle=(0, (2, 2)), label=label)
    axes.set(xlabel="predicted speedup", ylabel="word error rate (%)")
    axes.set_title(f"dev set, {curve['utterances']} utterances: predicted", fontsize=10.5)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def _measured(axes: Axes, report: Report) -> None:
    for base in report["baselines"][:1]:
        speech = base["extra"].get("speech")
        if speech:
            axes.scatter([1.0], [100 * speech["wer"]], s=46, color="#1f2937", marker="*", label="plain")
            axes.axhline(100 * speech["wer"], color="#1f2937", linewidth=1, linestyle=(0, (4, 3)))
    for row in report["strategies"]:
        if row["name"] in ROWS and row["status"] == "ok":
            label, colour, marker = ROWS[row["name"]]
            wer = 100 * row["extra"]["speech"]["wer"]
            axes.scatter(
                [row["speed"]["speedup"]], [wer], s=46, color=colour, marker=marker, label=readable(label)
            )
    axes.set(xlabel="measured speedup, batch size 1", ylabel="word error rate (%)")
    axes.set_title("held-out sets: measured", fontsize=10.5)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def _front(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points that no other beats in both, fastest first."""
    best: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda item: (-item["speedup"], item["wer"])):
        if not best or point["wer"] < best[-1]["wer"]:
            best.append(point)
    return best
