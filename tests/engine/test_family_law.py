"""Sampling follows the enumerated law also where a family changes logits, embeddings, attention or memory."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_infer.engine.recurrent_states import LayerStates
from ssd_infer.engine.target import Target
from tests.conftest import build_model
from tests.engine.causal_families import LAYERS, needs_states, tiny
from tests.engine.enumerated import law, p_of, sampled
from tests.engine.test_sampling_law import SETTINGS, VOCAB, p_value

_SINKS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16, "sliding_window": 4}
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "soft cap": ("gemma2", {"final_logit_softcapping": 1.0, "sliding_window": 4}),
    "logit scale": ("cohere", {"logit_scale": 0.5}),
    "multipliers": (
        "granite",
        {"embedding_multiplier": 4.0, "logits_scaling": 0.5, "residual_multiplier": 0.7},
    ),
    "sinks": ("gpt_oss", _SINKS),
    "added positions": ("gpt2", {}),
    "slopes": ("bloom", {}),
}


@pytest.mark.parametrize("settings", SETTINGS[:2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_keeps_the_law(name: str, settings: dict[str, Any]) -> None:
    family, changes = MECHANISMS[name]
    model: Any = build_model(family, layers=3, vocab_size=VOCAB, initializer_range=0.12, **changes)
    assert p_value(model, settings, "early_exit", {"exit_layer": 1, "gamma": 2}) > 1e-3


def test_a_forgotten_soft_cap_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    family, changes = MECHANISMS["soft cap"]
    model: Any = build_model(family, layers=3, vocab_size=VOCAB, initializer_range=0.5, **changes)
    target = Target.of(model)
    params = {"exit_layer": 1, "gamma": 2}
    assert p_value(model, SETTINGS[0], "early_exit", params) > 1e-3
    monkeypatch.setattr(target, "_leave", None)
    assert p_value(model, SETTINGS[0], "early_exit", params) < 1e-6


RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2)},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "mamba2": {},
}
"""Models whose layers remember by gated delta rule, by convolution alone, and by state space without any attention."""
EXIT = {"exit_layer": 2, "gamma": 2}
NEW, ROWS = 4, 1000
"""A draft of two tokens, of which none, one or both are accepted, and a token after it that the states decide."""


def recurrent_model(model_type: str) -> Any:
    """Build a model over seven tokens whose layers, those above the exit too, remember by recurrence."""
    return tiny(model_type, vocab_size=VOCAB, eos_token_id=None, **RECURRENT[model_type])


@needs_states
@pytest.mark.parametrize("settings", SETTINGS[:2])
@pytest.mark.parametrize("model_type", RECURRENT)
def test_recurrent_states_keep_the_law(model_type: str, settings: dict[str, Any]) -> None:
    model = recurrent_model(model_type)
    out = sampled(model, settings, "early_exit", EXIT, NEW, ROWS)
    total = out.stats.total
    assert ROWS / 2 < total.accepted < total.drafted - ROWS / 2, "rounds of rejection and of acceptance"
    assert p_of(out.sequences, law(model, settings, NEW)) > 1e-3


@needs_states
@pytest.mark.parametrize("model_type", RECURRENT)
def test_states_that_remember_rejected_tokens_would_fail(
    monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    model = recurrent_model(model_type)
    Target.of(model)  # examined as it is: that would find the fault below before decoding does

    def stay(states: LayerStates, places: Any, _: Any) -> None:
        states.seen = list(places)

    monkeypatch.setattr(LayerStates, "_go_to", stay)
    out = sampled(model, SETTINGS[1], "early_exit", EXIT, NEW, ROWS)
    assert p_of(out.sequences, law(model, SETTINGS[1], NEW)) < 1e-6
