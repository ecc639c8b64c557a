"""Grouped attention under every other way of decoding: the same tokens, only where contexts are long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.kernels import grouped as attention
from ssd_infer.engine.kernels import plain
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.target import Target
from ssd_infer.strategies.sparse_attention.sparse_attention import SparseAttention
from tests.conftest import ModelFactory
from tests.engine.test_exactness import NEW, prompts, reference
from tests.offload.support import build_moe

DRAFTS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("early_exit", {"exit_layer": 2, "gamma": 4}),
    ("early_exit+ngram", {"exit_layer": 2, "gamma": 4}),
    ("skip_set", {"skip_attention": [1], "skip_mlp": [2], "gamma": 4, "confidence": 0.0}),
    ("ngram", {"gamma": 4}),
]


@pytest.mark.parametrize(("draft", "params"), DRAFTS)
def test_every_strategy_is_exact_on_it(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch, draft: str | None, params: dict[str, Any]
) -> None:
    monkeypatch.setattr(plain, "_FROM_SLOTS", 1)
    monkeypatch.setattr(plain, "_FROM_CAPACITY", 1)
    calls = []
    original = attention.window_attention
    monkeypatch.setattr(
        attention, "window_attention", lambda *arguments: calls.append(0) or original(*arguments)
    )
    model = tiny_model(vocab_size=29)
    rows = prompts(8, 29)
    expected = reference(model, rows)
    for part, texts in ((rows, expected), (rows[:1], expected[:1])):
        out = ssd_infer.generate(model, part, draft=draft, draft_params=params or None, max_new_tokens=NEW)
        assert out.sequences == texts
    assert calls


def test_a_long_context_is_decoded_on_it_and_a_short_one_is_not(tiny_model: ModelFactory) -> None:
    model = tiny_model(max_position_embeddings=2048)
    target = Target.of(model)
    sampler = Sampler(SamplingParams(), target.device, 0)
    assert plain.grouped_layers(open_session(target, [[2] * 100], 8, 0, sampler)) is None
    assert plain.grouped_layers(open_session(target, [[2] * 100] * 100, 8, 0, sampler)) is None
    assert plain.grouped_layers(open_session(target, [[2] * 1100] * 4, 8, 0, sampler)) is not None
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(2, 97, (size,), generator=generator) for size in (1300, 1280, 900, 1300)]
    assert ssd_infer.generate(model, rows, max_new_tokens=8).sequences == reference(model, rows, 8)


def test_sliding_windows_keep_their_own_attention(tiny_model: ModelFactory) -> None:
    target = Target.of(model := tiny_model("mistral", sliding_window=16))
    session = open_session(target, [[2] * 1100] * 4, 8, 0, Sampler(SamplingParams(), target.device, 0))
    assert plain.grouped_layers(session) is None
    assert model.config.sliding_window == 16


def test_attention_replaced_between_two_decodings_is_examined_again(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "_FROM_SLOTS", 1)
    monkeypatch.setattr(plain, "_FROM_CAPACITY", 1)
    model = tiny_model(vocab_size=29)
    rows = prompts(3, 29)
    before = reference(model, rows)
    assert ssd_infer.generate(model, rows, max_new_tokens=NEW).sequences == before
    for layer in model.model.layers:
        layer.self_attn.forward = halved(layer.self_attn.forward)
    assert ssd_infer.generate(model, rows, max_new_tokens=NEW).sequences == reference(model, rows) != before
    assert "replaced by a wrapper" in (SparseAttention.applicable(Target.of(model)) or "")


def halved(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward of attention whose result is half of what it was."""

    def wrapper(*arguments: Any, **named: Any) -> Any:
        out, *rest = forward(*arguments, **named)
        return out / 2, *rest

    return wrapper


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_cache_of_compressed_keys_keeps_its_own_attention(family: str) -> None:
    """Its layers attend to other keys than the cache holds, which must neither fail nor be taken for keys."""
    model = build_moe(family, v_head_dim=12)
    rows = [torch.randint(2, 61, (600,), generator=torch.Generator().manual_seed(row)) for row in range(8)]
    reason = SparseAttention.applicable(Target.of(model))
    assert reason is None or "compressed keys and values" in reason
    assert ssd_infer.generate(model, rows, max_new_tokens=4).sequences == reference(model, rows, 4)
