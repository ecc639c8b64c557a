"""A draft that looks at some tokens only decodes what plain decoding does: greedy text, and the law when sampling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ssd_infer
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.sampling import Sampler
from tests.conftest import build_model
from tests.engine.enumerated import PROMPT, law, p_of, sampled

VOCAB, NEW, ROWS = 7, 3, 6000
HEADS = ("static", "context", "lowrank")
SEEN = 4
"""Tokens a draft looks at, of seven."""
DRAFTS: list[tuple[str, dict[str, Any]]] = [
    ("early_exit", {"exit_layer": 1, "gamma": 2}),
    ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "trust": 0}),
    ("early_exit", {"exit_layer": 1, "gamma": 2, "tree": 9}),
    ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "trust": 0, "tree": 8}),
    ("early_exit+del", {"gamma": 2, "exits": [1], "guard": 0.0}),
    ("skip_set", {"skip_attention": [1], "skip_mlp": [2], "gamma": 2, "confidence": 0.0, "guard": 0.0}),
    (
        "skip_set",
        {
            "skip_attention": [1],
            "skip_mlp": [2],
            "gamma": 2,
            "confidence": 0.0,
            "guard": 0.0,
            "tree": 7,
        },
    ),
    ("sparse_attention", {"selector": "quest", "ratio": 0.3, "min_budget": 2, "gamma": 2}),
]
STATIC = (DRAFTS[0][0], DRAFTS[0][1] | {"head": "static", "head_size": SEEN})
SETTINGS = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}]


@pytest.fixture(scope="module")
def model() -> Any:
    """A model over seven tokens whose first exit is a decent but wrong draft."""
    return build_model(layers=3, vocab_size=VOCAB, initializer_range=0.12)


def p_value(model: Any, settings: dict[str, Any], name: str, params: dict[str, Any]) -> float:
    """Return the chi-square p-value of `ROWS` sampled continuations against the enumerated law."""
    out = sampled(model, settings, name, params, NEW, ROWS, seed=5)
    assert out.stats.total.drafted
    return p_of(out.sequences, law(model, settings, NEW))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("name", "params"), DRAFTS, ids=[name for name, _ in DRAFTS])
def test_follows_the_enumerated_law(
    model: Any, name: str, params: dict[str, Any], head: str, settings: dict[str, Any]
) -> None:
    assert p_value(model, settings, name, params | {"head": head, "head_size": SEEN}) > 1e-3


def _filled_with_zeros(sampler: Sampler, scored: Scored) -> tuple[Tensor, Law | None]:
    """Draw within S, but say that the token was drawn by the nucleus of another law: S filled up to all of V."""
    assert scored.ids is not None
    token = scored.tokens(sampler.draw(sampler.probs(scored.logits)))
    full = torch.zeros(*scored.logits.shape[:-1], VOCAB)
    full.scatter_(-1, scored.ids.expand(scored.logits.shape), scored.logits)
    return token, Law(sampler.probs(full))


def _residual_within(law: Law, p: Tensor) -> Tensor:
    """Take the residual over S alone."""
    assert law.ids is not None
    left = p.index_add(-1, law.ids, -law.probs).clamp_(min=0.0)
    return torch.zeros_like(left).index_copy_(-1, law.ids, left[..., law.ids])


def test_a_law_filled_with_zeros_fails(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "choose", _filled_with_zeros)
    assert p_value(model, SETTINGS[1], *STATIC) < 1e-6


def test_a_residual_within_what_was_looked_at_fails(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Law, "left_of", _residual_within)
    assert p_value(model, SETTINGS[0], *STATIC) < 1e-6


@pytest.mark.parametrize(("name", "params"), DRAFTS, ids=[name for name, _ in DRAFTS])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rules", [{}, {"repetition_penalty": 1.4, "suppress_tokens": [3]}])
def test_greedy_text_of_a_ragged_batch_stays(
    model: Any, name: str, params: dict[str, Any], head: str, rules: dict[str, Any]
) -> None:
    rows = [PROMPT, PROMPT[:3], [1, 5, 6, 1, 5], [4]]
    plain = ssd_infer.generate(model, rows, max_new_tokens=24, **rules)
    params = params | {"head": head, "head_size": SEEN}
    found = ssd_infer.generate(model, rows, draft=name, draft_params=params, max_new_tokens=24, **rules)
    assert found.sequences == plain.sequences
    assert found.stats.total.drafted
