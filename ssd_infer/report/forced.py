"""What many prompts predict of a strategy beside what few timed ones show."""

from __future__ import annotations

from ssd_infer.report.format import interval, number, row_interval, times
from ssd_infer.report.rows import Report, ok_rows

TITLE = "Predicted from many prompts"
CAPTION = (
    "Acceptance from one teacher-forced pass over the target's own continuation of every prompt (exact when greedy, in "
    "expectation when sampling), costs from repeated passes; the timed decodings beside it check their product. "
    "Prefill is part of what is timed, and not of the prediction."
)
HEAD = (
    "strategy",
    "prompts",
    "tokens",
    "τ",
    "95 %",
    "τ timed",
    "predicted",
    "95 %",
    "measured",
    "95 %",
    "ratio",
)


def forced_cells(report: Report) -> list[tuple[str, ...]]:
    """Return one line a strategy that was predicted in this way; none in reports without."""
    lines: list[tuple[str, ...]] = []
    for row in ok_rows(report):
        facts = row["extra"].get("teacher_forced")
        if facts:
            measured = row["speed"]["speedup"]
            lines.append(
                (
                    row["name"],
                    str(facts["prompts"]),
                    str(facts["tokens"]),
                    number(facts["tau"]),
                    interval(facts["tau_ci95"]),
                    number(row["acceptance"]["tau"]),
                    times(facts["predicted_speedup"]),
                    interval(facts["predicted_ci95"]),
                    times(measured),
                    row_interval(row),
                    number(measured / facts["predicted_speedup"]),
                )
            )
    return lines
