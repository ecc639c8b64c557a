"""Rows that are prefilled once: decoding goes on from them exactly, for every draft and kind of layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine import prefilled
from ssd_infer.engine.prefilled import Prefilled, prefill, prefill_once
from ssd_infer.engine.target import Target
from ssd_infer.strategies import registry
from ssd_infer.tuning.cell import PLAIN, THEIRS, Way, measure_cell, room_for
from tests.conftest import ModelFactory
from tests.engine.causal_families import needs_states, tiny

NEW = 6
_MORE: dict[str, dict[str, Any]] = {"gpt2": {"n_positions": 256, "max_position_embeddings": 256}}
DRAFTS: dict[str, dict[str, Any]] = {
    "ngram": {"gamma": 3},
    "early_exit": {"exit_layer": 1, "gamma": 3},
    "early_exit+del": {"gamma": 3, "guard": 0},
    "early_exit+ngram": {"exit_layer": 1, "gamma": 3},
    "skip_set": {"skip_attention": [1], "skip_mlp": [1], "gamma": 3, "confidence": 0.1, "guard": 1.0},
    "swift": {"share": 1.0, "fruitless": 1.0, "worth": 1.0, "window": 8},
    "reduced_experts": {"k_draft": 1, "gamma": 3, "confidence": 0.0, "follow": False},
    "sparse_attention": {"selector": "pillar", "ratio": 0.2, "min_budget": 8, "gamma": 3},
}


def prompts_of(count: int, length: int = 60) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(2, 97, (count, length), generator=generator).tolist()


def way(name: str, target: Target, params: dict[str, Any] | None = None) -> Way:
    strategy = registry.get(name)
    given = DRAFTS[name] if params is None else params
    return Way(name, strategy, strategy.parse(given, target))


STEPPING = [pytest.param(family, marks=needs_states) for family in ("qwen3_next", "mamba2")]


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "gemma3_text", "deepseek_v3", "mixtral", "lfm2", *STEPPING]
)
def test_drafts_go_on_from_prefilled_rows_exactly(family: str) -> None:
    model = tiny(family, **_MORE.get(family, {}))
    target, prompts = Target.of(model), prompts_of(2)
    ways = [way(name, target) for name in DRAFTS if registry.get(name).unsupported_reason(target) is None]
    assert {"ngram", "early_exit"} <= {one.name for one in ways}
    filled = Prefilled(target, [prefill(target, prompt) for prompt in prompts], 3, NEW, room_for(ways))
    theirs = filled.transformers_cache() is not None
    found = {row.name: row for row in measure_cell(filled, ways, NEW, 2, their_tokens=NEW * theirs)}
    wanted = ssd_infer.generate(model, filled.prompts, max_new_tokens=NEW, eos_token_id=[])
    assert set(found) == {PLAIN, *([THEIRS] if theirs else []), *(one.name for one in ways)}
    for row in found.values():
        assert [tokens[:NEW] for tokens in row.tokens] == wanted.sequences, row.name
    assert found["early_exit"].drafted > 0


def test_a_model_with_states_hands_none_on_to_transformers() -> None:
    target = Target.of(_model := tiny("lfm2"))
    assert Prefilled(target, [prefill(target, prompts_of(1)[0])], 1, NEW).transformers_cache() is None


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_prefilled_rows_are_kept_for_later_runs(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family, **_MORE.get(family, {}))
    target, (prompt, other) = Target.of(model), prompts_of(2)
    first = prefill_once(target, prompt, tmp_path / "rows")
    with monkeypatch.context() as patch:
        patch.setattr(prefilled, "prefill", lambda *_: pytest.fail("prefilled twice"))
        again = prefill_once(target, prompt, tmp_path / "rows")
        with pytest.raises(pytest.fail.Exception):
            prefill_once(target, other, tmp_path / "rows")
    assert again.first == first.first
    rows = [Prefilled(target, [row], 2, NEW) for row in (first, again)]
    ways = [way("early_exit", target)]
    fresh, kept = (measure_cell(filled, ways, NEW, 1, their_tokens=0) for filled in rows)
    assert [row.tokens for row in fresh] == [row.tokens for row in kept]


def test_rows_of_other_weights_are_not_taken(tiny_model: ModelFactory, tmp_path: Path) -> None:
    model, (prompt,) = tiny_model(), prompts_of(1)
    prefill_once(Target.of(model), prompt, tmp_path)
    prefill_once(Target.of(_twin := tiny_model(seed=1)), prompt, tmp_path)
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.down_proj.weight").view(-1)[-1] += 1
    prefill_once(Target.of(model), prompt, tmp_path)
    assert len(list(tmp_path.glob("*.pt"))) == 3
