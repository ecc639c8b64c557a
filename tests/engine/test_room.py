"""Texts that no memory holds are refused before anything is reserved, in words that say what to lower."""

from __future__ import annotations

from typing import Any

import pytest

import ssd_infer
from ssd_infer.engine import room
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from tests.conftest import build_model
from tests.engine.causal_families import needs_states
from tests.engine.family_table import CASES, built

SLOT = 2 * 2 * 2 * 8 * 4
"""Two layers, keys and values, two heads of eight numbers in float32."""


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(layers=2)


@pytest.mark.parametrize("draft", [None, "early_exit"])
@pytest.mark.parametrize("new", [10**12, 10**18, 2**70])
def test_more_tokens_than_memory_holds(model: Any, new: int, draft: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        ssd_infer.generate(model, [[5, 6], [7, 8, 9]], draft=draft, max_new_tokens=new)
    (problem,) = caught.value.problems
    assert problem.key == "max_new_tokens"
    assert problem.value == new
    assert f"asks for 2 × {new + 3} slots of {SLOT} bytes" in problem.rule
    assert "fewer rows" in problem.remedy


def test_what_just_fits_is_tried(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that spares most calls a pass is generous; what decides is counted."""
    fits = (4 + 12) * (SLOT + room.POSITION_BYTES)
    monkeypatch.setattr(room, "memory_of", lambda target: fits)
    out = ssd_infer.generate(model, [[5, 6, 7, 8]], max_new_tokens=12, eos_token_id=[])
    assert len(out.sequences[0]) == 12
    with pytest.raises(ConfigError, match="lower it, well below 12"):
        ssd_infer.generate(model, [[5, 6, 7, 8]], max_new_tokens=13)


def test_where_memory_is_not_known_nothing_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.os, "sysconf", _unknown)
    assert room.memory_of(Target.of(model)) is None


def _unknown(name: str) -> int:
    raise ValueError(f"unrecognized configuration name {name}")


@needs_states
@pytest.mark.parametrize(("model_type", "layers"), [("mamba2", 0), ("lfm2", 2)])
def test_states_of_recurrence_take_no_slots(model_type: str, layers: int) -> None:
    target = Target.of(built(next(case for case in CASES if case.model_type == model_type)))
    assert room.slot_bytes(target) == layers * 2 * 2 * 8 * 4
