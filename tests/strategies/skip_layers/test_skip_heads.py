"""The head a skip set drafts with is chosen with models whose weights want gradients, too."""

from __future__ import annotations

import pytest

import ssd_infer
from ssd_infer.tuning import draft_heads
from tests.conftest import build_model


@pytest.mark.parametrize("draft", ["skip_set", "early_exit", "swift"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_heads_are_compared_on_a_model_that_could_be_trained(draft: str, do_sample: bool) -> None:
    model = build_model(vocab_size=2 * min(draft_heads.SIZES))
    assert all(weight.requires_grad for weight in model.parameters())
    params = {"skip_attention": [1], "skip_mlp": [2], "guard": 0.0} if draft == "skip_set" else None
    rows = [[5, 6, 7, 8], [9, 10, 11]]
    out = ssd_infer.generate(
        model, rows, draft=draft, draft_params=params, max_new_tokens=4, do_sample=do_sample, seed=1
    )
    assert [len(row) for row in out.sequences] == [4, 4]
