"""Laws over a part of the vocabulary: the same numbers as written out over all of it, duplicates and gaps included."""

from __future__ import annotations

import pytest
import torch

from ssd_infer.engine.acceptance import accept, accept_scored
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.sampling import Sampler, SamplingParams

V, B, GAMMA = 11, 3, 4
SHARED = torch.tensor([1, 4, 5, 9])
BY_ROW = torch.tensor([[0, 3, 5, 5], [2, 4, 6, 2], [1, 7, 8, 10]]).unsqueeze(1)
"""One set of ids a row; the third column of the first two rows, or the first, comes up again in the fourth."""
BY_STEP = torch.stack([torch.randperm(V, generator=torch.Generator().manual_seed(i))[:4] for i in range(12)])
KINDS = {"shared": SHARED, "by row": BY_ROW, "by step": BY_STEP.view(B, GAMMA, 4)}


def scored(ids: torch.Tensor) -> Scored:
    logits = torch.randn(B, GAMMA, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    if ids is BY_ROW:
        logits[:2, :, 3] = -torch.inf
    return Scored(logits, ids)


def dense(found: Scored) -> torch.Tensor:
    out = torch.full((B, GAMMA, V), -torch.inf, dtype=torch.float64)
    ids = found.ids.expand(found.logits.shape) if found.ids is not None else None
    for place in torch.cartesian_prod(torch.arange(B), torch.arange(GAMMA), torch.arange(4)).tolist():
        b, g, k = place
        assert ids is not None
        out[b, g, ids[b, g, k]] = max(out[b, g, ids[b, g, k]], found.logits[b, g, k])
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_law_says_what_it_says_written_out(kind: str) -> None:
    found = scored(KINDS[kind])
    law, full = Law(found.logits.softmax(-1), found.ids), dense(found).softmax(-1)
    tokens = torch.randint(V, (B, GAMMA), generator=torch.Generator().manual_seed(1))
    p = torch.rand(B, GAMMA, V, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.allclose(law.of(tokens), full.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
    assert torch.allclose(law.left_of(p), (p - full).clamp(min=0))
    rows, at = torch.arange(B), torch.tensor([2, 0, 3])
    assert torch.allclose(law.at(rows, at).left_of(p[rows, at]), (p - full).clamp(min=0)[rows, at])
    steps = [Law(law.probs[:, i], law.at(rows, torch.full((B,), i)).ids) for i in range(GAMMA)]
    stacked = Law.joined(steps, torch.stack)
    assert stacked is not None
    assert torch.equal(stacked.of(tokens), law.of(tokens))
    assert torch.equal(stacked.first(2).of(tokens[:, :2]), law.of(tokens)[:, :2])


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_tokens_are_each_others_inverse(kind: str) -> None:
    found = scored(KINDS[kind])
    columns = found.logits.argmax(-1)
    tokens = found.tokens(columns)
    assert torch.equal(tokens, dense(found).argmax(-1))
    assert torch.equal(found.columns(tokens), columns)
    missing = dense(found).argmin(-1)
    assert bool((found.columns(missing) == 4).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_is_applied_as_over_the_whole_vocabulary(kind: str) -> None:
    found, factor = scored(KINDS[kind]), torch.linspace(-1, 2, V, dtype=torch.float64)

    def rule(scores: torch.Tensor) -> torch.Tensor:
        assert scores.shape == (B, GAMMA, V)
        return (scores + factor).masked_fill(torch.arange(V) == 5, -torch.inf)

    assert torch.equal(dense(found.through(rule, V)), rule(dense(found)))


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_drafts_are_verified_within_a_part_of_the_vocabulary(
    kind: str, do_sample: bool
) -> None:
    found, drafts = scored(KINDS[kind]), torch.empty(B, GAMMA - 1, dtype=torch.long)
    for row in range(B):  # right, outside, right; and the second row right throughout
        best = dense(found).argmax(-1)[row]
        drafts[row] = best[:-1]
    drafts[0, 1] = int(dense(found)[0, 1].argmin())

    def sampler() -> Sampler:
        made = Sampler(SamplingParams(do_sample=do_sample), torch.device("cpu"), seed=3)
        made.begin(range(B), [0] * B)
        return made

    wanted = accept(dense(found), drafts, None, None, sampler())
    accepted, following = accept_scored(found, drafts, None, sampler())
    assert torch.equal(accepted, wanted[0])
    if not do_sample or kind == "shared":  # other orders of ids draw other tokens of the same law
        assert torch.equal(following, wanted[1])
    assert int(accepted[0]) <= 1


def test_all_of_the_vocabulary_takes_the_dense_way() -> None:
    p, q = (torch.rand(B, V, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    assert torch.equal(Law(q).left_of(p), (p - q).clamp(min=0))
    assert Law.joined([], torch.stack) is None


def test_a_rule_that_leaves_none_of_the_tokens_looked_at_leaves_their_scores() -> None:
    scored = Scored(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([3, 5]))

    def rule(scores: torch.Tensor) -> torch.Tensor:
        ruled = scores.clone()
        ruled[0, [3, 5]] = -torch.inf
        ruled[1, 5] = -torch.inf
        return ruled

    found = scored.through(rule, 8).logits
    assert found.tolist() == [[1.0, 2.0], [1.0, -torch.inf]]
