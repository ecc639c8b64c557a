"""Sampling follows the enumerated law also where a family changes logits, embeddings or attention."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_infer.engine.target import Target
from tests.conftest import build_model
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
