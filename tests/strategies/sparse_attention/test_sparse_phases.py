"""Rows out of step: exact like lock-step, evenly spread, lawful when sampling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.sparse_attention import phases
from ssd_infer.strategies.sparse_attention.mixed import MixedWindow
from ssd_infer.strategies.sparse_attention.phases import first_phases
from tests.conftest import ModelFactory, build_model
from tests.engine import test_sampling_law as sampling
from tests.engine.test_exactness import prompts, reference

NEW = 32
BALANCED = {"ratio": 0.1, "min_budget": 6, "phases": "balanced"}


def test_first_phases_are_spread_and_never_at_the_verify() -> None:
    assert first_phases(6, 4) == [1, 2, 3, 0, 1, 2]
    for gamma in range(1, 9):
        counts = [first_phases(40, gamma).count(phase) for phase in range(gamma)]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == 40


@pytest.mark.parametrize("selector", ["pillar", "vegas", "streaming", "snapkv"])
@pytest.mark.parametrize("gamma", [1, 5])
def test_identical_out_of_step(tiny_model: ModelFactory, selector: str, gamma: int) -> None:
    model = tiny_model(vocab_size=29, initializer_range=0.1)
    rows = [torch.cat([row, row.flip(0)]) for row in prompts(8, 29)]
    params = BALANCED | {"selector": selector, "gamma": gamma}
    streamed: dict[int, list[int]] = {row: [] for row in range(len(rows))}
    out = ssd_infer.generate(
        model,
        rows,
        draft="sparse_attention",
        draft_params=params,
        max_new_tokens=NEW,
        streamer=lambda row, tokens: streamed[row].extend(tokens),
    )
    assert out.sequences == reference(model, rows, NEW)
    assert list(streamed.values()) == out.sequences
    assert out.stats.total.emitted == NEW * len(rows)
    assert 0 < out.stats.total.accepted <= out.stats.total.drafted


def test_rows_end_at_different_times(tiny_model: ModelFactory) -> None:
    model = tiny_model(vocab_size=13)
    rows = prompts(12, 13, seed=3)
    free = reference(model, rows, NEW)
    eos = max(range(2, 13), key=lambda token: sum(token in text[2:-2] for text in free))
    out = ssd_infer.generate(
        model,
        rows,
        draft="sparse_attention",
        draft_params=BALANCED | {"selector": "pillar", "gamma": 4},
        max_new_tokens=NEW,
        eos_token_id=eos,
    )
    assert out.sequences == reference(model, rows, NEW, eos=eos)


def test_passes_carry_both_kinds_of_work(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every draft right at γ=4, no pass verifies more than two of eight rows; in lock-step one verifies all."""
    seen: list[int] = []

    class Spy(MixedWindow):
        def __init__(self, geometry: Any, segments: Any) -> None:
            super().__init__(geometry, segments)
            seen.append(sum(part.verifies for part in segments))

    monkeypatch.setattr(phases, "MixedWindow", Spy)
    params = {"selector": "pillar", "ratio": 1.0, "min_budget": 1, "gamma": 4, "phases": "balanced"}
    ssd_infer.generate(
        tiny_model(), prompts(8, 97), draft="sparse_attention", draft_params=params, max_new_tokens=60
    )
    assert set(seen[5:40]) == {0, 2}
    assert sum(seen[5:40]) == 35 * 8 / 5


@pytest.mark.parametrize("settings", sampling.SETTINGS[:2])
def test_follows_the_enumerated_law(settings: dict[str, Any]) -> None:
    model = build_model(layers=3, vocab_size=sampling.VOCAB, initializer_range=0.2)
    params = {"selector": "pillar", "ratio": 0.1, "min_budget": 2, "gamma": 2, "phases": "balanced"}
    assert sampling.p_value(model, settings, "sparse_attention", params) > 1e-3


def test_quest_cannot_run_out_of_step(tiny_model: ModelFactory) -> None:
    with pytest.raises(ConfigError, match="phases: must be lockstep"):
        ssd_infer.generate(
            tiny_model(),
            prompts(1, 97),
            draft="sparse_attention",
            draft_params=BALANCED | {"selector": "quest", "gamma": 2},
            max_new_tokens=4,
        )
