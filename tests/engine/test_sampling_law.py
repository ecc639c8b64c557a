"""Sampling with any draft follows the target's law: chi-square against exact enumeration; wrong verifiers fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ssd_infer
from ssd_infer.engine import acceptance, verdict
from ssd_infer.engine.sampling import Sampler, SamplingParams
from tests.conftest import build_model
from tests.engine.enumerated import PROMPT, law, p_of, sampled

VOCAB, NEW, ROWS = 7, 3, 6000
DRAFTS: list[tuple[str, dict[str, Any]]] = [
    ("early_exit", {"exit_layer": 1, "gamma": 2}),
    ("ngram", {"gamma": 2}),
    ("ngram", {"gamma": 2, "tree": 7}),
    ("early_exit", {"exit_layer": 1, "gamma": 2, "tree": 8}),
    ("skip_set", {"skip_attention": [0], "skip_mlp": [1], "gamma": 2, "confidence": 0.0, "tree": 8}),
    ("skip_set", {"skip_attention": [2], "skip_mlp": [1], "gamma": 2, "confidence": 0.2, "tree": 6}),
    ("early_exit", {"exit_layer": 1, "gamma": 2, "tree": 5, "confidence": 0.3}),
    ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "trust": 0, "tree": 9}),
    ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "trust": 0}),
    ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "trust": 1}),
]
SETTINGS = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 4}]


@pytest.fixture(scope="module")
def model() -> Any:
    """A model over seven tokens whose first exit is a decent but wrong draft."""
    return build_model(layers=3, vocab_size=VOCAB, initializer_range=0.12)


def p_value(model: Any, settings: dict[str, Any], name: str, params: dict[str, Any]) -> float:
    """Return the chi-square p-value of `ROWS` sampled continuations against the enumerated law."""
    return p_of(sampled(model, settings, name, params, NEW, ROWS).sequences, law(model, settings, NEW))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("name", "params"), DRAFTS)
def test_follows_the_enumerated_law(
    model: Any, name: str, params: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert p_value(model, settings, name, params) > 1e-3


def _accept_everything(
    logits: Tensor,
    drafts: Tensor,
    counts: Tensor | None,
    probs: Tensor | None,
    sampler: Sampler,
    unverified: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    del probs, unverified
    accepted = torch.full((drafts.shape[0],), drafts.shape[1]) if counts is None else counts
    return accepted, sampler.draw(sampler.probs(logits)[torch.arange(drafts.shape[0]), accepted])


def _resample_from_p(
    logits: Tensor,
    drafts: Tensor,
    counts: Tensor | None,
    probs: Tensor | None,
    sampler: Sampler,
    unverified: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    accepted, following = acceptance.accept(logits, drafts, counts, probs, sampler, unverified)
    wrong = sampler.draw(sampler.probs(logits)[torch.arange(drafts.shape[0]), accepted])
    limit = drafts.shape[1] if counts is None else counts
    return accepted, torch.where(accepted < limit, wrong, following)


def _bonus_without_top_p(
    logits: Tensor,
    drafts: Tensor,
    counts: Tensor | None,
    probs: Tensor | None,
    sampler: Sampler,
    unverified: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    accepted, following = acceptance.accept(logits, drafts, counts, probs, sampler, unverified)
    raw = sampler.draw(logits.softmax(-1)[torch.arange(drafts.shape[0]), accepted])
    limit = drafts.shape[1] if counts is None else counts
    return accepted, torch.where(accepted == limit, raw, following)


@pytest.mark.parametrize(
    ("wrong", "settings"),
    [(_accept_everything, SETTINGS[0]), (_resample_from_p, SETTINGS[0]), (_bonus_without_top_p, SETTINGS[1])],
)
def test_a_wrong_verifier_fails(
    model: Any, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any], settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(verdict, "accept", wrong)
    assert p_value(model, settings, *DRAFTS[0]) < 1e-6


def test_same_seed_same_text(model: Any) -> None:
    def once(seed: int) -> list[list[int]]:
        name, params = DRAFTS[0]
        return ssd_infer.generate(
            model, [PROMPT] * 5, draft=name, draft_params=params, max_new_tokens=20, do_sample=True, seed=seed
        ).sequences

    assert once(3) == once(3)
    assert once(3) != once(4)


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    sampler = Sampler(SamplingParams(do_sample=True, top_p=0.7), torch.device("cpu"), 0)
    probs = sampler.probs(torch.tensor([0.5, 0.3, 0.15, 0.05]).log())
    assert torch.allclose(probs, torch.tensor([0.625, 0.375, 0.0, 0.0]))
