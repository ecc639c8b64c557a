#!/usr/bin/env python3
"""Write the table of docs/families.md: which draft decodes which family exactly, and why others are refused.

    python scripts/check_families.py            write it
    python scripts/check_families.py --check    exit with 1 where the committed table is another one
    python scripts/check_families.py --only gemma

Tiny random models are decoded with every draft and compared with transformers' generate, row by row; a wrong token or
an error that is no refusal ends the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ssd_infer.errors import SSDError  # noqa: E402  the repository's own, wherever this is started
from tests.engine.causal_families import tiny  # noqa: E402
from tests.engine.family_table import (  # noqa: E402
    CASES,
    DRAFTS,
    REFUSED,
    Case,
    Outcome,
    built,
    check,
    decode,
    price,
    reason,
)

PAGE = ROOT / "docs" / "families.md"
BEGIN, END = "<!-- table: scripts/check_families.py -->", "<!-- end of the table -->"


def outcomes(case: Case, turn: int) -> list[Outcome]:
    """Return what every draft does on `case`; a family that is refused is refused for all of them."""
    price(built(case))
    return [check(case, draft, turn + place) for place, draft in enumerate(DRAFTS)]


def refusal(model_type: str) -> str:
    """Return why a family cannot be decoded at all."""
    try:
        decode(tiny(model_type), [[3, 4, 5]], None, 1, [])
    except SSDError as error:
        return reason(error)
    raise SystemExit(f"{model_type} is decoded: it belongs among the cases of tests/engine/family_table.py")


def table(rows: Iterable[tuple[str, list[Outcome]]]) -> list[str]:
    """Return the table as Markdown, with every reason once below it."""
    notes: dict[str, int] = {}
    lines = [
        f"| family | {' | '.join('none' if draft is None else draft for draft in DRAFTS)} |",
        f"|---|{'---|' * len(DRAFTS)}",
    ]
    for title, found in rows:
        cells = []
        for outcome in found:
            number = 0 if outcome.exact else notes.setdefault(outcome.said, len(notes) + 1)
            cells.append("exact" if outcome.exact else f"no ({number})")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, "", *(f"{number}. {said}" for said, number in notes.items())]


def refusals() -> list[str]:
    """Return the list of families that are refused, with their reasons."""
    return ["", "Refused:", "", *(f"- {title}: {refusal(kind)}" for title, kind in REFUSED.items())]


def with_table(page: str, lines: list[str]) -> str:
    """Return `page` with `lines` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"])


def main() -> int:
    """Decode, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the table changed")
    parser.add_argument(
        "--only", default="", help="families whose model_type holds this text; shown, not written"
    )
    arguments = parser.parse_args()
    chosen = [case for case in CASES if arguments.only in case.model_type]
    rows = []
    for turn, case in enumerate(chosen):
        rows.append((case.title, outcomes(case, turn)))
        print(case.title, *(one.said for one in rows[-1][1]), sep=" | ", flush=True)
    if arguments.only:
        return 0
    lines = table(rows) + refusals()
    page = PAGE.read_text("utf-8")
    if not arguments.check:
        PAGE.write_text(with_table(page, lines), "utf-8")
        return 0
    return int(with_table(page, lines) != page)


if __name__ == "__main__":
    sys.exit(main())
