"""Sparse attention drafts: exact for every selector and budget, alone and in a ragged batch; the sampling law."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.sparse_attention.sparse_attention import SparseAttention
from tests.conftest import ModelFactory, build_model
from tests.engine import test_sampling_law as sampling
from tests.engine.test_exactness import prompts, reference

NEW = 32
SELECTORS = ("pillar", "vegas", "streaming", "snapkv", "quest")
TINY = {"ratio": 0.05, "min_budget": 4}
BUDGETS = [TINY, {"ratio": 0.4, "min_budget": 8}, {"ratio": 1.0, "min_budget": 1}]


def decode(model: Any, rows: list[torch.Tensor], new: int = NEW, **params: Any) -> ssd_infer.GenerateOutput:
    """Decode with sparse attention drafts."""
    return ssd_infer.generate(
        model, rows, draft="sparse_attention", draft_params=params, max_new_tokens=new, seed=0
    )


@pytest.fixture(scope="module", params=("llama", "qwen3", "olmo2"))
def family(request: pytest.FixtureRequest) -> tuple[Any, list[torch.Tensor], list[list[int]]]:
    """A model of each family with full attention, eight ragged prompts of 4 to 38 tokens, their greedy text."""
    model = build_model(request.param, vocab_size=29, initializer_range=0.1)
    rows = [torch.cat([row, row.flip(0)]) for row in prompts(8, 29)]
    return model, rows, reference(model, rows, NEW)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("size", BUDGETS)
def test_identical_alone_and_in_a_ragged_batch(
    family: tuple[Any, list[torch.Tensor], list[list[int]]], selector: str, size: dict[str, Any]
) -> None:
    model, rows, expected = family
    batch = decode(model, rows, selector=selector, gamma=5, **size)
    assert batch.sequences == expected
    assert batch.stats.total.drafted > 0
    assert batch.stats.total.alpha == 1.0 or size["ratio"] < 1
    alone = decode(model, rows[:1], selector=selector, gamma=1, **size)
    assert alone.sequences == expected[:1]


@pytest.mark.parametrize("selector", SELECTORS)
def test_pillar_can_begin_with_the_prompt_instead(tiny_model: ModelFactory, selector: str) -> None:
    """No round is dense then; the other selectors begin as they always do."""
    model = tiny_model(vocab_size=29, initializer_range=0.1)
    rows = [torch.cat([row, row.flip(0)]) for row in prompts(6, 29)]
    out = decode(model, rows, selector=selector, gamma=5, cold_start="prompt", **TINY)
    assert out.sequences == reference(model, rows, NEW)
    short = decode(model, rows, 6, selector=selector, gamma=4, cold_start="prompt", **TINY)
    dense = decode(model, rows, 6, selector=selector, gamma=4, **TINY)
    fewer = short.stats.report["slots_per_token_draft"] < dense.stats.report["slots_per_token_draft"]
    assert fewer == (selector == "pillar")


@pytest.mark.parametrize("selector", SELECTORS)
def test_rows_end_at_different_times(tiny_model: ModelFactory, selector: str) -> None:
    model = tiny_model(vocab_size=13)
    rows = prompts(12, 13, seed=3)
    free = reference(model, rows, NEW)
    eos = max(range(2, 13), key=lambda token: sum(token in text[2:-2] for text in free))
    expected = reference(model, rows, NEW, eos=eos)
    assert len({len(text) for text in expected}) > 3
    out = ssd_infer.generate(
        model,
        rows,
        draft="sparse_attention",
        draft_params={"selector": selector, "gamma": 4, **TINY},
        max_new_tokens=NEW,
        eos_token_id=eos,
    )
    assert out.sequences == expected


@pytest.mark.parametrize(
    ("selector", "settings"),
    [(name, sampling.SETTINGS[0]) for name in SELECTORS]
    + [("pillar", case) for case in sampling.SETTINGS[1:]],
)
def test_follows_the_enumerated_law(selector: str, settings: dict[str, Any]) -> None:
    model = build_model(layers=3, vocab_size=sampling.VOCAB, initializer_range=0.2)
    params = {"selector": selector, "ratio": 0.1, "min_budget": 2, "gamma": 2}
    assert sampling.p_value(model, settings, "sparse_attention", params) > 1e-3


def test_everything_is_accepted_when_everything_is_read(tiny_model: ModelFactory) -> None:
    for selector in SELECTORS:
        out = ssd_infer.generate(
            tiny_model(),
            prompts(5, 97),
            draft="sparse_attention",
            draft_params={"selector": selector, "ratio": 1.0, "min_budget": 1, "gamma": 6},
            max_new_tokens=NEW,
            do_sample=True,
            seed=0,
        )
        assert out.stats.total.alpha == 1.0


def test_the_first_cycle_is_dense_and_later_ones_are_not(tiny_model: ModelFactory) -> None:
    rows = [torch.cat([row] * 6) for row in prompts(6, 97)]
    first = decode(tiny_model(), rows, 5, selector="pillar", gamma=4, ratio=0.02, min_budget=5)
    assert (first.stats.total.rounds, first.stats.total.alpha) == (6, 1.0)
    later = decode(tiny_model(), rows, selector="pillar", gamma=4, ratio=0.02, min_budget=5)
    assert later.stats.total.alpha is not None
    assert later.stats.total.alpha < 0.95
    assert later.stats.report["slots_per_token_draft"] < first.stats.report["slots_per_token_draft"] * 0.7


@pytest.mark.parametrize("selector", ["pillar", "quest"])
def test_eager_attention_and_float64(tiny_model: ModelFactory, selector: str) -> None:
    model = tiny_model(attn_implementation="eager").double()
    rows = prompts(6, 97)
    assert decode(model, rows, selector=selector, gamma=4, **TINY).sequences == reference(model, rows, NEW)


def test_one_head_a_group_and_one_group(tiny_model: ModelFactory) -> None:
    for heads in (1, 4):
        model = tiny_model(num_key_value_heads=heads)
        rows = prompts(3, 97)
        out = decode(model, rows, selector="pillar", gamma=4, **TINY)
        assert out.sequences == reference(model, rows, NEW)


def test_the_model_is_left_as_it_was(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny_model().train(), prompts(2, 97)
    modules = {name: id(module) for name, module in model.named_modules()}
    configs = [layer.self_attn.config for layer in model.model.layers]
    before = model.config.to_dict()
    calls = []

    def broken(self: SparseAttention, *_: Any) -> Any:
        calls.append(self)
        raise RuntimeError("drafting broke")

    monkeypatch.setattr(SparseAttention, "step", broken)
    with pytest.raises(RuntimeError, match="drafting broke"):
        decode(model, rows, selector="pillar", gamma=2, **TINY)
    assert calls
    assert model.training
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert [layer.self_attn.config for layer in model.model.layers] == configs
    assert model.config.to_dict() == before
    assert model.config._attn_implementation == "sdpa"


def test_sliding_windows_are_refused_with_the_reason(tiny_model: ModelFactory) -> None:
    model = tiny_model("mistral", sliding_window=16)
    assert "sliding window of 16" in str(SparseAttention.applicable(Target.of(model)))
    with pytest.raises(ConfigError, match="sliding window of 16"):
        decode(model, prompts(1, 97), gamma=2)


def test_bad_parameters_are_named_together(tiny_model: ModelFactory) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(tiny_model(), prompts(1, 97), ratio=1.5, min_budget=0, gamma=0)
    assert all(f"draft_params.{name}" in str(caught.value) for name in ("ratio", "min_budget", "gamma"))
