"""Sampling with a module, some rows of the head and a tree follows the enumerated law; wrong versions do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine import accept_tree
from ssd_infer.engine.laws import Law
from tests.engine.enumerated import law, p_of, sampled
from tests.strategies.draft_module.modules import DRAFTS, make, tiny

NEW, ROWS, SEEN = 3, 6000, 4
SETTINGS = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}]
WAYS: list[dict[str, Any]] = [{"gamma": 2}, {"gamma": 2, "tree": 7}]


def p_value(model: Any, settings: dict[str, Any], name: str, params: dict[str, Any]) -> float:
    """Return the chi-square p-value of sampled continuations against the enumerated law."""
    out = sampled(model, settings, name, {"confidence": 0.0} | params, NEW, ROWS, seed=5)
    assert out.stats.total.drafted
    return p_of(out.sequences, law(model, settings, NEW))


def _residual_within(drafted: Law, p: torch.Tensor) -> torch.Tensor:
    """Take the residual over what was looked at alone."""
    assert drafted.ids is not None
    ids = drafted.ids.expand(drafted.probs.shape)
    left = p.scatter_add(-1, ids, -drafted.probs).clamp_(min=0.0)
    return torch.zeros_like(left).scatter_(-1, ids, left.gather(-1, ids))


@pytest.fixture(scope="module", params=DRAFTS)
def drawn(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A model over seven tokens with a module that looks at four of them."""
    model = tiny(layers=3, vocab_size=7, initializer_range=0.12)
    make(model, request.param, "layer", rows=SEEN, noise=0.02)
    return model, DRAFTS[request.param]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("params", WAYS)
@pytest.mark.parametrize("head", ["own", "full"])
def test_follows_the_enumerated_law(
    drawn: tuple[Any, str], settings: dict[str, Any], params: dict[str, Any], head: str
) -> None:
    model, name = drawn
    assert p_value(model, settings, name, params | {"head": head}) > 1e-3


@pytest.mark.parametrize("params", WAYS)
def test_a_residual_within_what_is_looked_at_fails(
    drawn: tuple[Any, str], params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, name = drawn
    monkeypatch.setattr(Law, "left_of", _residual_within)
    assert p_value(model, SETTINGS[0], name, params | {"head": "own"}) < 1e-12


class _SameLawTwice(accept_tree._Trial):
    """Try every sibling as if it were drawn from the whole law."""

    def _reject(self, rejected: torch.Tensor, node: torch.Tensor, token: torch.Tensor) -> None:
        before = self._q
        super()._reject(rejected, node, token)
        self._q = before


@pytest.mark.parametrize("form", DRAFTS)
def test_siblings_of_one_law_twice_fail(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole head: where a draft looks at few tokens, rejection leaves hardly anything on the others."""
    model = tiny(layers=3, vocab_size=7, initializer_range=0.2)
    make(model, form, noise=0.1)
    asked = {"temperature": 0.5}, DRAFTS[form], WAYS[1] | {"head": "full"}
    assert p_value(model, *asked) > 1e-3
    monkeypatch.setattr(accept_tree, "_Trial", _SameLawTwice)
    assert p_value(model, *asked) < 1e-9


def test_a_row_does_not_depend_on_its_mates(drawn: tuple[Any, str]) -> None:
    model, name = drawn
    rows = [[5, 6, 1, 5, 6], [2, 3], [3, 4, 3, 4, 3]]

    def sampled(some: list[list[int]]) -> list[list[int]]:
        out = ssd_infer.generate(
            model,
            some,
            draft=name,
            draft_params=WAYS[1],
            max_new_tokens=12,
            eos_token_id=[],
            do_sample=True,
            seed=7,
        )
        found: list[list[int]] = out.sequences
        return found

    assert sampled(rows)[:1] == sampled(rows[:1])
