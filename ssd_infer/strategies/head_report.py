"""What a report says of a draft head that looks at some tokens only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import number
from ssd_infer.report.table import Table
from ssd_infer.tuning.draft_heads import FULL, HeadOption
from ssd_infer.tuning.head_study import HeadScores

HEAD_FACTS = "draft_head"
"""Where a search's facts hold those of the head."""
TITLE = "Draft heads"
CAPTION = (
    "Coverage is the share of the target's choices that the head looks at; α (one token) of the same drafts with the "
    "full head and with this one, on the same text; milliseconds to choose one token."
)
HEAD = ("head", "K", "coverage", "α full", "α", "full ms", "ms")


def head_facts(
    option: HeadOption, found: HeadScores, full_alpha: float, seconds: Mapping[HeadOption, float], note: str
) -> dict[str, Any]:
    """Return what is known of the head that was chosen, JSON-ready; `note` says why a saved order was not taken."""
    facts = {
        "head": option.kind,
        "head_size": option.size,
        "coverage": found.coverage,
        "alpha": found.scores.mean,
        "alpha_full": full_alpha,
        "seconds": seconds[option],
        "seconds_full": seconds[FULL],
        "note": note,
    }
    return {HEAD_FACTS: facts}


def head_tables(row: Mapping[str, Any]) -> list[Table]:
    """Return one line for a row that drafts with a restricted head; nothing otherwise."""
    facts = (row["extra"].get("search") or {}).get(HEAD_FACTS)
    if not facts or row["status"] != "ok":
        return []
    cells = (
        str(facts["head"]),
        str(facts["head_size"]),
        number(facts["coverage"], 3),
        number(facts["alpha_full"], 3),
        number(facts["alpha"], 3),
        number(1e3 * facts["seconds_full"], 2),
        number(1e3 * facts["seconds"], 2),
    )
    return [Table(TITLE, HEAD, (cells,), " ".join(filter(None, (CAPTION, facts.get("note")))))]
