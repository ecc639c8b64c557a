"""What the code does is what was recorded: `python tests/house/record.py` records it anew after a wanted change."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_record", HERE / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house_record"] = module
    spec.loader.exec_module(module)
    return module


RECORD = recorder()


def recorded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORD.RECORDED / f"{part}.json").read_text("utf-8"))
    return found


def now(part: str, folder: Path) -> dict[str, Any]:
    RECORD.record(part, folder / "now.json")
    found: dict[str, Any] = json.loads((folder / "now.json").read_text("utf-8"))
    return found


def test_every_strategy_is_recorded() -> None:
    from ssd_infer.strategies import registry as drafts

    assert set(drafts.registry()) == {*RECORD.CAUSAL, *RECORD.MODULES, *RECORD.EXPERTS}
    recipes = {path.stem for path in (RECORD.ROOT / "conf" / "recipe").glob("*.yaml")}
    assert recipes == set(RECORD.RECIPES)


@pytest.mark.integration
def test_tokens_of_every_strategy(tmp_path: Path) -> None:
    """Lossless drafts decode what plain decoding does, and all decode what they did."""
    before, found = recorded("tokens"), now("tokens", tmp_path)
    assert set(found) == set(before)
    changed = {name: (before[name], found[name]) for name in before if found[name] != before[name]}
    assert not changed
    for name in (*RECORD.CAUSAL, *RECORD.MODULES):
        assert found[name]["greedy"]["sha256"] == found["plain"]["greedy"]["sha256"], name
    assert found["reduced_experts"]["greedy"]["sha256"] == found["plain of experts"]["greedy"]["sha256"]
    for drafter in RECORD.DIFFUSION:
        assert found[f"fewer_steps:{drafter}"]["greedy"]["sha256"] == found["stepwise"]["greedy"]["sha256"]
        assert found[f"fewer_steps:{drafter}"]["sampled"]["sha256"] == found["stepwise"]["sampled"]["sha256"]
    drafted = [name for name in (*RECORD.CAUSAL, *RECORD.EXPERTS) if found[name]["greedy"]["drafted"]]
    assert set(drafted) >= {"early_exit", "skip_set", "sparse_attention", "swift", "reduced_experts"}


@pytest.mark.integration
def test_the_report_under_a_fixed_clock_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    RECORD.record("report", tmp_path / "now.json")
    assert (tmp_path / "now.json").read_bytes() == (RECORD.RECORDED / "report.json").read_bytes()


@pytest.mark.integration
def test_losses_of_every_recipe(tmp_path: Path) -> None:
    before, found = recorded("losses"), now("losses", tmp_path)
    assert set(found) == set(before) == set(RECORD.RECIPES)
    for recipe, curve in before.items():
        assert len(curve) == RECORD.STEPS
        assert found[recipe] == pytest.approx(curve, rel=1e-6), recipe
