"""The families people have decode exactly with every draft that applies, as the table of docs/families.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ssd_infer.engine.target import Target
from ssd_infer.errors import SSDError, UnsupportedModelError
from tests.engine.causal_families import NEWEST, tiny
from tests.engine.family_table import (
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
    recurrent,
)
from tests.scripts.load import load_script


@pytest.fixture(scope="module")
def found() -> dict[str, list[Outcome]]:
    """Collect what the tests of this module find, by title."""
    return {}


@pytest.mark.parametrize(("turn", "case"), list(enumerate(CASES)), ids=[case.title for case in CASES])
def test_a_family_is_exact_with_every_draft_or_refuses_it(
    turn: int, case: Case, found: dict[str, list[Outcome]]
) -> None:
    if not NEWEST and recurrent(case.model_type):
        with pytest.raises(UnsupportedModelError, match="go on from a state by single tokens only"):
            Target.of(built(case))
        return
    price(built(case))
    outcomes = [check(case, draft, turn + place) for place, draft in enumerate(DRAFTS)]
    assert outcomes[0].exact, outcomes[0].said
    assert all(outcome.exact for outcome in outcomes[1:3]), "early exits need nothing of a family"
    for outcome in outcomes:
        assert "\n" not in outcome.said
    right = sum(outcome.accepted for outcome in outcomes)
    assert right > 0 or Target.of(built(case)).recurrent, "no draft of any kind was ever right"
    found[case.title] = outcomes


def test_the_table_in_the_documentation_is_this_one(found: dict[str, list[Outcome]]) -> None:
    """It is made by the newest tested transformers, and by a run of the whole module."""
    if not NEWEST or len(found) < len(CASES):
        pytest.skip("needs every family of the newest tested transformers")
    script: Any = load_script("check_families")
    lines = script.table((case.title, found[case.title]) for case in CASES) + script.refusals()
    page = Path(script.PAGE).read_text("utf-8")
    assert script.with_table(page, lines) == page, "run scripts/check_families.py"


@pytest.mark.parametrize("model_type", REFUSED.values())
def test_a_family_that_is_refused_says_why_before_anything_runs(model_type: str) -> None:
    with pytest.raises(SSDError) as caught:
        decode(tiny(model_type), [[3, 4, 5]], None, 1, [])
    said = reason(caught.value)
    assert said
    assert "\n" not in said
    assert "failed with" not in said
