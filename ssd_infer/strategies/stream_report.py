"""Show acceptance along streams whose text changes its kind, as a plot and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import number, percent
from ssd_infer.report.table import Mark, Plot, Series, Table
from ssd_infer.strategies.streams import KEY

TITLE = "Acceptance when the text changes"
CAPTION = "One stream: prose, code, then questions and answers."


def stream_tables(row: Mapping[str, Any]) -> list[Table]:
    """Show acceptance by kind of text; nothing where no streams were decoded."""
    facts = row["extra"].get(KEY)
    if not facts or row["status"] != "ok":
        return []
    names, kinds = [kind["name"] for kind in facts["kinds"]], facts["kinds"]
    alphas = [kind["alpha"] for kind in kinds]
    kept = alphas[-1] / alphas[0] if alphas[0] and alphas[-1] is not None else None
    searches = facts.get("searches") or []
    head = (
        *(f"{name} α" for name in names),
        "last ÷ first",
        *(f"{name} τ" for name in names),
        "searches",
        "parameters",
    )
    line = (
        *(number(alpha) for alpha in alphas),
        percent(kept),
        *(number(kind["tau"]) for kind in kinds),
        number(sum(searches) / len(searches), 1) if searches else "–",
        facts["note"] or "found on the way",
    )
    return [Table(TITLE, head, (line,), CAPTION)]


def stream_plots(row: Mapping[str, Any]) -> list[Plot]:
    """Draw accepted ÷ drafted by place in the stream, and where the text changes."""
    facts = row["extra"].get(KEY)
    if not facts or row["status"] != "ok" or not facts["curve"]:
        return []
    half = facts["bin"] / 2
    series = Series(
        "accepted",
        tuple(point["start"] + half for point in facts["curve"]),
        tuple(point["accepted"] / point["drafted"] if point["drafted"] else None for point in facts["curve"]),
    )
    marks = tuple(
        Mark("x", facts["per_turn"] * place, kind["name"]) for place, kind in enumerate(facts["kinds"])
    )
    across, up = "new tokens of the stream", "accepted ÷ drafted"
    return [Plot(TITLE, across, up, (series,), CAPTION, marks=marks, from_zero=True, listed=False)]
