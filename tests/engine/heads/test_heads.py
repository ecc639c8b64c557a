"""Draft heads score what the target's own head scores: the same rows, of the tokens they say they look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssd_infer.engine.heads.context import ContextHead
from ssd_infer.engine.heads.head import DraftHead, FullHead
from ssd_infer.engine.heads.lowrank import LowRankHead, preview_of
from ssd_infer.engine.heads.rows import restricted_reason
from ssd_infer.engine.heads.static import StaticHead
from ssd_infer.engine.laws import Scored
from ssd_infer.engine.session import Row
from ssd_infer.engine.target import Target
from tests.conftest import build_model

V, WINDOW = 97, 12
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"final_logit_softcapping": 3.0, "sliding_window": 8},
    "granite": {"logits_scaling": 2.0},
    "cohere": {"logit_scale": 0.25},
    "phi": {},
    "gpt2": {},
}


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest) -> Target:
    model = build_model(request.param, tie_word_embeddings=False, **FAMILIES[request.param]).double()
    head: Any = model.get_output_embeddings()
    if head.bias is not None:
        nn.init.normal_(head.bias)
    return Target.of(model)


@pytest.fixture(scope="module")
def llama() -> Target:
    return Target.of(build_model(tie_word_embeddings=False).double())


def states(target: Target, batch: int, width: int = 3) -> Tensor:
    size = target.embedding.weight.shape[1]
    draw = torch.Generator().manual_seed(4)
    return torch.randn(batch, width, int(size), generator=draw, dtype=torch.float64)  # type: ignore[call-overload]


def dense(scored: Scored) -> Tensor:
    """Write scores out over all of V."""
    if scored.ids is None:
        return scored.logits
    empty = torch.full((*scored.logits.shape[:-1], V), -torch.inf, dtype=scored.logits.dtype)
    return empty.scatter_reduce(-1, scored.ids.expand(scored.logits.shape), scored.logits, "amax")


def heads(target: Target) -> list[DraftHead]:
    ids = torch.tensor([0, 3, 4, 50, 96])
    static = StaticHead(target, ids)
    context = ContextHead(static, WINDOW)
    context.follow([Row(0, [7, 3, 8], 3, 0), Row(1, [50, 9, 9, 11, 12], 5, 0)])
    moments = torch.eye(states(target, 1).shape[-1], dtype=torch.float64)
    return [FullHead(target), static, context, LowRankHead(target, preview_of(target, moments, 8), 9)]


@torch.inference_mode()
def test_every_logit_is_the_targets_own(target: Target) -> None:
    hidden = states(target, 2)
    full = target.logits(hidden)
    for head in heads(target):
        found = dense(head.scores(hidden))
        seen = found > -torch.inf
        assert torch.allclose(found[seen], full[seen], atol=1e-12), head.kind
        assert int(seen.sum(-1).min()) >= min(5, V)
        several = dense(head.scores(torch.stack([hidden, 2 * hidden])))
        assert torch.allclose(several[0][seen], found[seen], atol=1e-12)


@torch.inference_mode()
def test_the_tokens_looked_at(llama: Target) -> None:
    hidden = states(llama, 2)
    _, static, context, lowrank = heads(llama)
    shared = {0, 3, 4, 50, 96}
    assert looked_at(static.scores(hidden))[0] == shared
    assert looked_at(context.scores(hidden)) == [shared | {7, 8}, shared | {9, 11, 12}]
    assert all(len(ids) == 9 for ids in looked_at(lowrank.scores(hidden[:, :1])))


def looked_at(scored: Scored) -> list[set[int]]:
    return [set(torch.nonzero((row > -torch.inf).any(0)).flatten().tolist()) for row in dense(scored)]


@torch.inference_mode()
def test_a_preview_of_full_rank_finds_the_best(llama: Target) -> None:
    hidden = states(llama, 4, 6)
    size = hidden.shape[-1]
    head = LowRankHead(llama, preview_of(llama, torch.eye(size, dtype=torch.float64), size), 3)
    best = llama.logits(hidden).topk(3).indices.sort().values
    ids = head.scores(hidden).ids
    assert ids is not None
    assert torch.equal(ids.sort().values, best)


def test_a_preview_is_the_best_of_its_rank_for_these_states(llama: Target) -> None:
    """No worse than the plain SVD of the head, on the states it was made for; and better where those are lopsided."""
    weight = llama.head.weight.detach()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(500, weight.shape[1], generator=draw, dtype=torch.float64) * torch.linspace(
        3, 0.01, weight.shape[1]
    )
    made = preview_of(llama, x.T @ x, 6)
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    plain = (u[:, :6] * s[:6]) @ v[:6]
    error, usual = ((x @ (weight - w).T).square().sum() for w in (made.left @ made.right, plain))
    assert error < 0.9 * usual


class _Text:
    """Rows that grow by what rounds accept, and end one after another."""

    def __init__(self, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.rows = [Row(i, self.some(4 + 9 * i), 1, 0) for i in range(3)]

    def some(self, count: int) -> list[int]:
        return torch.randint(0, 30, (count,), generator=self.draw).tolist()

    def grow(self) -> None:
        for row in self.rows:
            row.tokens += self.some(1 + int(torch.randint(0, 5, (1,), generator=self.draw)))


def _fresh(target: Target, rows: Sequence[Row]) -> ContextHead:
    head = ContextHead(StaticHead(target, torch.tensor([0, 1, 2, 3, 4, 5])), WINDOW)
    head.follow(rows)
    return head


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(6))
def test_a_context_head_is_that_of_the_committed_text(llama: Target, seed: int) -> None:
    text = _Text(seed)
    head = _fresh(llama, text.rows)
    for turn in range(25):
        text.grow()
        if turn == 9:
            del text.rows[1]
        if turn == 17:
            del text.rows[0]
        head.follow(text.rows)
        hidden = states(llama, len(text.rows))
        found, wanted = head.scores(hidden), _fresh(llama, text.rows).scores(hidden)
        assert torch.allclose(dense(found), dense(wanted), atol=1e-12)
        for row, ids in zip(text.rows, looked_at(found), strict=True):
            assert ids == {0, 1, 2, 3, 4, 5} | set(row.tokens[-WINDOW:])


def test_heads_that_are_no_plain_matrix_are_refused() -> None:
    model = build_model(tie_word_embeddings=False)
    assert restricted_reason(Target.of(model)) is None

    class Special(nn.Linear):
        pass

    other = build_model(tie_word_embeddings=False)
    other.get_output_embeddings().__class__ = Special
    assert "Special, not a plain matrix" in str(restricted_reason(Target.of(other)))
    hooked = build_model(tie_word_embeddings=False)
    hooked.get_output_embeddings().register_forward_hook(lambda *_: None)
    assert "other code runs with its head" in str(restricted_reason(Target.of(hooked)))


def test_a_target_is_never_changed() -> None:
    model = build_model(tie_word_embeddings=False).double()
    target, before = Target.of(model), {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.inference_mode():
        for head in heads(target):
            head.scores(states(target, 2)).logits.fill_(0.0)
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
