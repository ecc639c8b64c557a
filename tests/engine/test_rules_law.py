"""Sampling under rules follows the law that transformers' own processors make: chi-square against enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.rules import Rules
from tests.conftest import build_model
from tests.engine.enumerated import PROMPT, p_of
from tests.offload.support import build_moe
from tests.transformers_rules import processed

VOCAB, NEW, ROWS = 7, 3, 1500
DRAFTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "ngram": ("ngram", {"gamma": 2}),
    "ngram, tree": ("ngram", {"gamma": 2, "tree": 6}),
    "early_exit": ("early_exit", {"exit_layer": 1, "gamma": 2}),
    "early_exit+ngram": ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "trust": 0}),
    "early_exit, tree": ("early_exit", {"exit_layer": 1, "gamma": 2, "tree": 6}),
    "early_exit+ngram, tree": ("early_exit+ngram", {"exit_layer": 1, "gamma": 2, "tree": 8, "trust": 0}),
    "early_exit+del": ("early_exit+del", {"gamma": 2, "guard": 0.0}),
    "skip_set": (
        "skip_set",
        {"skip_attention": [1], "skip_mlp": [1], "gamma": 2, "confidence": 0.0, "guard": 0.0},
    ),
    "sparse_attention": (
        "sparse_attention",
        {"selector": "pillar", "ratio": 0.2, "min_budget": 2, "gamma": 2},
    ),
    "sparse_attention, balanced": (
        "sparse_attention",
        {"selector": "pillar", "ratio": 0.2, "min_budget": 2, "gamma": 2, "phases": "balanced"},
    ),
    "reduced_experts": (
        "reduced_experts",
        {"k_draft": 1, "gamma": 2, "confidence": 0.0, "at_hand": False, "follow": False, "prefetch": False},
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "penalty": {"repetition_penalty": 6.0},
    "suppressed, top-p": {"suppress_tokens": [3, 6], "top_p": 0.8, "temperature": 0.8},
    "penalty, suppressed, top-k": {"repetition_penalty": 1.6, "suppress_tokens": [5], "top_k": 3},
    "no repeats": {"no_repeat_ngram_size": 2, "temperature": 1.3},
    "least length": {"min_new_tokens": 2, "eos": [2, 4]},
    "bias": {"sequence_bias": [[[3], -1.0], [[3, 4], 2.0]], "bad_words_ids": [[2, 3]]},
    "min-p": {"min_p": 0.25, "temperature": 1.4, "repetition_penalty": 1.3},
    "typical": {"typical_p": 0.7, "top_p": 0.95},
    "top-h": {"top_h": 0.6, "top_k": 5},
    "cut off": {"epsilon_cutoff": 0.1, "eta_cutoff": 0.3, "suppress_tokens": [1]},
}
EVERYONE = ("penalty", "suppressed, top-p")
"""Settings that every draft is tested under; the others go through the same two calls."""


@pytest.fixture(scope="module")
def models() -> dict[bool, Any]:
    """Two models over seven tokens, the second with experts."""
    dense = build_model(layers=3, vocab_size=VOCAB, initializer_range=0.12)
    experts = build_moe(vocab_size=VOCAB, dtype=torch.float32, initializer_range=0.12)
    return {False: dense, True: experts}


@torch.inference_mode()
def law(model: Any, settings: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Enumerate the probability of every output, by the model's own forward and transformers' own processors."""
    ended: dict[tuple[int, ...], float] = {}
    going: dict[tuple[int, ...], float] = {(): 1.0}
    eos = settings.get("eos", [])
    for length in range(1, NEW + 1):
        heads, grown = list(going), {}
        logits = model(input_ids=torch.tensor([[*PROMPT, *head] for head in heads])).logits[:, -1]
        given = {"do_sample": True, "top_k": 0} | settings
        probs = processed(model, PROMPT, heads, logits, **given).softmax(-1)
        for head, row in zip(heads, probs.tolist(), strict=True):
            for token, share in enumerate(row):
                if share:
                    done = token in eos or length == NEW
                    (ended if done else grown)[*head, token] = going[head] * share
        going = grown
    return ended


def p_value(model: Any, case: str, settings: dict[str, Any], expected: dict[tuple[int, ...], float]) -> float:
    """Return the chi-square p-value of sampled outputs; 0 where an impossible one came up."""
    draft, params = DRAFTS[case]
    given = {name: value for name, value in settings.items() if name != "eos"}
    out = ssd_infer.generate(
        model,
        [PROMPT] * ROWS,
        draft=draft,
        draft_params=params or None,
        max_new_tokens=NEW,
        do_sample=True,
        seed=7,
        eos_token_id=settings.get("eos", []),
        **given,
    )
    return p_of(out.sequences, expected)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_draft_follows_the_law(models: dict[bool, Any], name: str) -> None:
    laws = {kind: law(model, SETTINGS[name]) for kind, model in models.items()}
    for case in DRAFTS if name in EVERYONE else ("none", "early_exit", "ngram"):
        kind = case == "reduced_experts"
        assert p_value(models[kind], case, SETTINGS[name], laws[kind]) > 1e-4, case


@pytest.mark.parametrize("name", SETTINGS)
def test_the_law_is_another_than_without_rules(models: dict[bool, Any], name: str) -> None:
    kept = {
        key: SETTINGS[name][key] for key in ("temperature", "top_p", "top_k", "eos") if key in SETTINGS[name]
    }
    assert p_value(models[False], "none", kept, law(models[False], SETTINGS[name])) < 1e-6


@pytest.mark.parametrize("case", ["early_exit", "ngram"])
def test_rules_that_forget_the_drafts_fail(
    models: dict[bool, Any], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for a block as if every position followed the committed text alone."""
    right = Rules.target

    def forgetful(self: Rules, rows: Any, logits: Any, drafts: Any = ()) -> Any:
        columns = [right(self, rows, logits[..., at : at + 1, :]) for at in range(logits.shape[-2])]
        return torch.cat(columns, dim=-2)

    monkeypatch.setattr(Rules, "target", forgetful)
    settings = SETTINGS["bias"]
    assert p_value(models[False], case, settings, law(models[False], settings)) < 1e-6


def test_enumeration_sums_to_one(models: dict[bool, Any]) -> None:
    for settings in SETTINGS.values():
        assert sum(law(models[False], settings).values()) == pytest.approx(1.0, abs=1e-5)
