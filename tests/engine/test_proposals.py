"""A draft that proposes something else than it promises is told so in one sentence, before anything is verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.laws import Law
from ssd_infer.engine.session import Proposal
from ssd_infer.errors import DraftError
from ssd_infer.strategies.base import DraftParams, Strategy
from ssd_infer.strategies.info import StrategyInfo
from tests.conftest import build_model
from tests.registered import know_only

ROWS, GAMMA, WIDTH, VOCABULARY = 2, 2, 32, 97


@dataclass(slots=True)
class Params(DraftParams):
    gamma: int = GAMMA


class Mistaken(Strategy):
    """Propose what a test tells it to."""

    info = StrategyInfo("mistaken", "causal", "mistaken")
    Params = Params
    make: Callable[[], Any]

    def propose(self, limit: int) -> Proposal:
        """Return it, whatever it is."""
        return type(self).make()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(layers=2)


def decoded(model: Any, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> Any:
    """Decode two rows with a draft that proposes what `make` returns."""
    know_only(monkeypatch, None, Mistaken)
    monkeypatch.setattr(Mistaken, "make", staticmethod(make), raising=False)
    rows = [[5, 6, 7], [9, 8]]
    return ssd_infer.generate(model, rows, draft="mistaken", max_new_tokens=8, eos_token_id=[])


def tokens(*shape: int) -> torch.Tensor:
    return torch.full(shape or (ROWS, GAMMA), 5)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no proposal": (tokens, r"what it proposes must be a Proposal, not int64 of shape \(2, 2\)"),
    "a list": (lambda: Proposal([[5, 5]] * ROWS), r"tokens must be int64 of shape \(2, γ\), not a list"),  # type: ignore[arg-type]
    "one row": (lambda: Proposal(tokens(GAMMA)), r"tokens must be .*, not int64 of shape \(2,\)"),
    "more rows": (lambda: Proposal(tokens(3, GAMMA)), r"tokens must be .*, not int64 of shape \(3, 2\)"),
    "int32": (lambda: Proposal(tokens().int()), r"tokens must be int64 .*, not int32 of shape \(2, 2\)"),
    "counts by draft": (
        lambda: Proposal(tokens(), tokens()),
        r"counts must be integers of shape \(2,\), not",
    ),
    "counts of floats": (
        lambda: Proposal(tokens(), torch.ones(ROWS)),
        r"counts must be integers .*not float32",
    ),
    "too many": (
        lambda: Proposal(tokens(), torch.tensor([1, 3])),
        r"between 0 and the 2 drafted .* \[1, 3\]",
    ),
    "negative": (lambda: Proposal(tokens(), torch.tensor([-1, 1])), r"between 0 and the 2 .* be \[-1, 1\]"),
    "no law": (lambda: Proposal(tokens(), law=torch.ones(2, 2, 9)), "law must be a Law, not float32"),  # type: ignore[arg-type]
    "another vocabulary": (
        lambda: Proposal(tokens(), law=Law(torch.ones(ROWS, GAMMA, 9))),
        rf"law.probs must be of shape \(2, 2, {VOCABULARY}\), not float32 of shape \(2, 2, 9\)",
    ),
    "hidden of all rows": (
        lambda: Proposal(tokens(), hidden=torch.ones(1, GAMMA, WIDTH), resume_layer=1),
        r"hidden must be of shape \(2, 2 or 3, d\)",
    ),
    "unverified": (
        lambda: Proposal(tokens(), unverified=tokens()),
        r"unverified must be bool of shape \(2, 2\), not int64",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_draft_and_the_field_are_named(name: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, said = WRONG[name]
    with pytest.raises(DraftError, match=f"^draft 'mistaken': .*{said}") as caught:
        decoded(model, monkeypatch, make)
    assert "\n" not in str(caught.value)


def test_what_has_the_right_form_is_verified(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ssd_infer.generate(model, [[5, 6, 7], [9, 8]], max_new_tokens=8, eos_token_id=[])
    out = decoded(model, monkeypatch, lambda: Proposal(tokens(), torch.tensor([0, 2])))
    assert out.sequences == plain.sequences
    assert out.stats.rows[0].drafted == 0 < out.stats.rows[1].drafted
