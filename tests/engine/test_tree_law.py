"""Sampling through token trees follows the target's law: total variation against enumeration; wrong versions fail."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssd_infer.engine import accept_tree
from ssd_infer.engine.target import Target
from tests.conftest import build_model
from tests.engine.enumerated import PROMPT, law
from tests.engine.tree_drafts import SHAPE, DrawnTrees, decoded

VOCAB, NEW, ROWS = 6, 3, 12000
SETTINGS: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}]


@pytest.fixture(scope="module")
def model() -> Any:
    """A model over six tokens."""
    return build_model(layers=2, vocab_size=VOCAB, initializer_range=0.12)


def apart(model: Any, settings: dict[str, Any], **draft: bool) -> tuple[float, float]:
    """Return the total variation between sampled continuations and the law, and what noise alone exceeds never."""
    found, stats, _ = decoded(
        Target.of(model),
        [PROMPT] * ROWS,
        partial(DrawnTrees, **draft),
        len(SHAPE),
        NEW,
        seed=11,
        do_sample=True,
        **settings,
    )
    assert stats.total.accepted > ROWS / 4
    wanted = law(model, settings, NEW)
    keys = list(itertools.product(range(VOCAB), repeat=NEW))
    p = np.array([wanted[key] for key in keys])
    p /= p.sum()
    counts = Counter(map(tuple, found))
    assert not sum(count for key, count in counts.items() if wanted[key] == 0.0)
    seen = np.array([counts[key] for key in keys]) / ROWS
    drawn = np.random.default_rng(0).multinomial(ROWS, p, size=400) / ROWS
    noise = 0.5 * np.abs(drawn - p).sum(axis=1)
    return float(0.5 * np.abs(seen - p).sum()), float(noise.max())


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("draft", [{}, {"copies": True}, {"counted": True}])
def test_follows_the_enumerated_law(model: Any, settings: dict[str, Any], draft: dict[str, bool]) -> None:
    found, noise = apart(model, settings, **draft)
    assert found <= noise


class _SameLawTwice(accept_tree._Trial):
    """Try every sibling as if it were drawn from the whole law."""

    def _reject(self, rejected: Tensor, node: Tensor, token: Tensor) -> None:
        before = self._q
        super()._reject(rejected, node, token)
        self._q = before


class _NothingLost(accept_tree._Trial):
    """Try every sibling, and draw what follows, by the target's law as it was."""

    def _reject(self, rejected: Tensor, node: Tensor, token: Tensor) -> None:
        before = self.left
        super()._reject(rejected, node, token)
        self.left = before


class _NotNormalised(accept_tree._Trial):
    """Leave what rejections left as it is, no distribution."""

    def _reject(self, rejected: Tensor, node: Tensor, token: Tensor) -> None:
        assert self._q is not None
        left = self._q.left_of(self.left)
        super()._reject(rejected, node, token)
        self.left = torch.where(rejected.unsqueeze(1) & (left.sum(1, keepdim=True) > 0), left, self.left)


@pytest.mark.parametrize("wrong", [_SameLawTwice, _NothingLost, _NotNormalised])
def test_a_wrong_verifier_fails(model: Any, monkeypatch: pytest.MonkeyPatch, wrong: type[Any]) -> None:
    monkeypatch.setattr(accept_tree, "_Trial", wrong)
    found, noise = apart(model, SETTINGS[0])
    assert found > 1.4 * noise


def test_siblings_drawn_with_replacement_fail(model: Any) -> None:
    found, noise = apart(model, SETTINGS[0], again=True)
    assert found > 1.4 * noise


@pytest.mark.parametrize("draft", [{}, {"copies": True, "counted": True}])
def test_a_row_does_not_depend_on_its_mates(draft: dict[str, bool]) -> None:
    model = build_model(layers=3, vocab_size=23).double()
    prompts = [[5, 6, 7, 5, 6, 7, 5], [9, 8], [3, 4, 3, 4, 3], [11, 12, 13, 14]]

    def sampled(rows: list[list[int]]) -> list[list[int]]:
        make = partial(DrawnTrees, **draft)
        return decoded(Target.of(model), rows, make, len(SHAPE), 18, seed=7, do_sample=True, temperature=0.8)[
            0
        ]

    together = sampled(prompts)
    for place in range(len(prompts)):
        others = [*([[2, 2, 2]] * place), prompts[place], *([[4]] * (3 - place))]
        assert sampled(others)[place] == together[place]
        assert sampled(prompts[: place + 1])[place] == together[place]
