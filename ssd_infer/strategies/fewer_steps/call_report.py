"""Draw v(r): what a call costs with r drafted states, against one with a single state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.table import Plot, Series

TITLE = "Cost of a call by its number of states"
CAPTION = (
    "v(r) is the time of a call that evaluates r drafted states ÷ the time with one. "
    "Near the flat line drafted states are free; on the diagonal drafting cannot pay."
)


def call_plots(calls: Mapping[str, Any]) -> list[Plot]:
    """Draw a measured curve (`curve`, `batch`), one state and r states as the two limits; none for a single point."""
    curve = calls["curve"]
    if len(curve) < 2:
        return []
    states, ratios = tuple(point["states"] for point in curve), tuple(point["v"] for point in curve)
    most = states[-1]
    series = (
        Series("measured", states, ratios, tuple(f"{ratio:.2f}" for ratio in ratios)),
        Series("free", (1, most), (1.0, 1.0), style="dashed"),
        Series("as many calls", (1, most), (1.0, float(most)), style="dashed"),
    )
    across = f"states r in one call (batch {calls['batch']})"
    return [Plot(TITLE, across, "v(r)", series, CAPTION, from_zero=True)]
