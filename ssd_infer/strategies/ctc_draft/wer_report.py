"""Draw word error rate against speed: every pair of thresholds on the dev set, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.table import Mark, Plot, Series
from ssd_infer.strategies.ctc_draft.speech_report import at_first_batch

TITLE = "Word error rate against speed"
ACROSS, UP = "speedup", "word error rate (%)"


def wer_plots(row: Mapping[str, Any]) -> list[Plot]:
    """Draw a row's place at batch size 1, and the calibration curve where the row carries it; lower right is better."""
    extra = row.get("extra") or {}
    curve = extra.get("calibration") or {}
    drawn = _predicted(curve) if curve.get("points") else []
    if extra.get("speech") and at_first_batch(row):
        drawn.append(_measured(row, extra["speech"]))
    return drawn


def _measured(row: Mapping[str, Any], speech: Mapping[str, Any]) -> Plot:
    speedup = row["speed"]["speedup"] if "speed" in row else row.get("speedup", 1.0)
    place = Series(row["name"], (speedup,), (100 * speech["wer"],), style="points")
    caption = "Held-out sets, measured at batch size 1; lower right is better."
    return Plot(TITLE, ACROSS, UP, (place,), caption, from_zero=True, listed=False)


def _predicted(curve: Mapping[str, Any]) -> list[Plot]:
    best = _front(curve["points"])
    plain = 100 * curve["plain_wer"]
    marks = (
        Mark("y", plain, "plain decoding"),
        Mark("y", plain * (1 + curve["increase"]), f"+{100 * curve['increase']:.0f} % relative"),
    )
    series = (
        _points("a pair of thresholds", curve["points"], "points"),
        _points("none better in both", best, "line"),
    )
    title = f"{TITLE}, predicted"
    caption = f"All thresholds of the two gates on the dev set, {curve['utterances']} utterances."
    return [Plot(title, ACROSS, UP, series, caption, marks=marks, from_zero=True, listed=False)]


def _points(name: str, points: list[dict[str, Any]], style: str) -> Series:
    speeds = tuple(point["speedup"] for point in points)
    return Series(name, speeds, tuple(100 * point["wer"] for point in points), style=style)


def _front(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points that no other beats in both, fastest first."""
    best: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda item: (-item["speedup"], item["wer"])):
        if not best or point["wer"] < best[-1]["wer"]:
            best.append(point)
    return best
