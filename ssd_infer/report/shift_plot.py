"""Acceptance along streams whose text changes its kind, as a plot and as a table."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ssd_infer.report.format import number, percent, plain, readable
from ssd_infer.report.rows import Report, Row, is_sampled, ok_rows

TITLE = "Acceptance when the text changes"
CAPTION = (
    "One stream: prose, code, then questions and answers. SWIFT searches on, the skip set was found on prose."
)
HEAD = (
    "strategy",
    "prose α",
    "code α",
    "dialogue α",
    "last ÷ first",
    "prose τ",
    "code τ",
    "dialogue τ",
    "searches",
)
COLOURS = {"swift": "#ea580c", "skip_set": "#2563eb", "early_exit": "#059669"}


def shifted_rows(report: Report) -> list[Row]:
    """Return the rows that decoded the streams, by name."""
    rows = [row for row in ok_rows(report) if row["extra"].get("task_shift")]
    return sorted(rows, key=lambda row: str(row["name"]))


def shift_cells(report: Report) -> list[tuple[str, ...]]:
    """Return one line a strategy; titles are in `HEAD`."""
    return [_cells(row) for row in shifted_rows(report)]


def _cells(row: Row) -> tuple[str, ...]:
    facts = row["extra"]["task_shift"]
    alphas = [kind["alpha"] for kind in facts["kinds"]]
    kept = alphas[-1] / alphas[0] if alphas[0] and alphas[-1] is not None else None
    searches = facts.get("searches") or []
    return (
        row["name"],
        *(number(alpha) for alpha in alphas),
        percent(kept),
        *(number(kind["tau"]) for kind in facts["kinds"]),
        number(sum(searches) / len(searches), 1) if searches else "–",
    )


def draw_shift(report: Report) -> Figure | None:
    """Draw accepted ÷ drafted by position in the stream, one panel a sampling setting; None without such rows."""
    rows = shifted_rows(report)
    settings = [[row for row in rows if is_sampled(row) == sampled] for sampled in (False, True)]
    panels = [panel for panel in settings if panel]
    if not panels:
        return None
    figure = Figure(figsize=(6.4, 2.9 * len(panels)))
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, index + 1)
        for row in panel:
            _line(axes, row)
        _mark_kinds(axes, panel[0]["extra"]["task_shift"])
        axes.set(ylim=(0, 1.12), ylabel="accepted ÷ drafted")
        axes.set_xlabel(f"new tokens of the stream, {'sampling' if is_sampled(panel[0]) else 'greedy'}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
    figure.tight_layout()
    return figure


def _line(axes: Any, row: Row) -> None:
    facts = row["extra"]["task_shift"]
    half = facts["bin"] / 2
    points = [
        (point["start"] + half, point["accepted"] / point["drafted"] if point["drafted"] else float("nan"))
        for point in facts["curve"]
    ]
    colour = COLOURS.get(row["name"].split(":")[0], "#475569")
    across, up = zip(*points, strict=True)
    axes.plot(
        across,
        up,
        marker="o",
        markersize=3.2,
        linewidth=1.6,
        color=colour,
        label=plain(readable(row["name"]))[:32],
    )


def _mark_kinds(axes: Any, facts: dict[str, Any]) -> None:
    """Draw where the text changes, and name what follows."""
    for index, kind in enumerate(facts["kinds"]):
        start = facts["per_turn"] * index
        if index:
            axes.axvline(start, color="#6b7280", linewidth=1, linestyle=(0, (4, 3)))
        axes.text(start + 3, 1.05, plain(kind["name"])[:20], fontsize=9, color="#6b7280")
