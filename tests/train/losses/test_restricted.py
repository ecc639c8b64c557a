"""Losses on a part of the vocabulary against float64 references written from their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ssd_train.config.draft_losses import LOSSES
from ssd_train.losses.draft_rows import Draft, draft_loss, draft_matches
from ssd_train.losses.draft_teacher import Head, Teacher, target_loss, teach
from ssd_train.losses.restricted import Wanted, judge

VOCAB, KEPT, WIDTH, TOKENS = 23, 9, 6, 31
IDS = torch.tensor([0, 2, 3, 7, 8, 11, 15, 19, 22])


def reference(name: str, p: Tensor, logits: Tensor) -> Tensor:
    """Return the loss of each token from full `p` `(N, V)` and the draft's logits on S, by autograd's own rules."""
    q = torch.softmax(logits, -1)
    on = p[:, IDS]
    alpha = torch.minimum(on, q).sum(-1)
    mass = on.sum(-1)
    inside = on / mass[:, None]
    kl = mass * (inside * (inside.log() - q.log())).sum(-1)
    if name == "kl":
        return kl
    if name == "tv":
        return 1 - alpha
    if name == "nla":
        return -alpha.log()
    if name == "lk_hybrid":
        share = torch.exp(-3 * alpha.detach())
        return share * kl + (1 - share) * (1 - alpha)
    best = p.argmax(-1)
    rows = [
        -q[row, (token == IDS).nonzero()[0, 0]].log() if token in IDS else q[row, 0] * 0
        for row, token in enumerate(best.tolist())
    ]
    return torch.stack(rows)


def places(ids: Tensor, tokens: Tensor) -> Tensor:
    """Return where `tokens` `(n,)` stand among the ascending `ids` `(K,)`, -1 for those that do not."""
    found = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    return torch.where(ids[found] == tokens, found, torch.full_like(found, -1))


def case(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return the target's full law `(N, V)` and a draft's logits `(N, K)`."""
    random = torch.Generator().manual_seed(4)
    p = torch.softmax(2 * torch.randn(TOKENS, VOCAB, generator=random, dtype=dtype), -1)
    return p, torch.randn(TOKENS, KEPT, generator=random, dtype=dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_slope_are_those_of_the_definition(name: str) -> None:
    p, logits = case()
    logits.requires_grad_()
    expected = reference(name, p, logits)
    expected.sum().backward()
    found = judge(name, Wanted(p[:, IDS].log(), places(IDS, p.argmax(-1))), logits.detach())
    torch.testing.assert_close(found.value, expected.detach(), rtol=1e-10, atol=1e-12)
    assert logits.grad is not None
    torch.testing.assert_close(found.slope, logits.grad, rtol=1e-9, atol=1e-12)
    assert (p[:, IDS].sum(-1) < 0.95).any()  # so that a renormalised p would not pass


def test_alpha_is_not_renormalised_and_stays_below_the_mass_of_the_set() -> None:
    p, logits = case()
    found = judge("tv", Wanted(p[:, IDS].log(), places(IDS, p.argmax(-1))), logits)
    assert (found.alpha <= p[:, IDS].sum(-1) + 1e-12).all()
    perfect = judge("tv", Wanted(p[:, IDS].log(), places(IDS, p.argmax(-1))), p[:, IDS].log())
    torch.testing.assert_close(perfect.alpha, p[:, IDS].sum(-1))


def test_places_of_tokens_outside_the_set_are_none() -> None:
    assert places(IDS, torch.tensor([0, 1, 22, 21, 7])).tolist() == [0, -1, 8, -1, 3]


def teacher_and_drafts(
    *, own: bool = False, capped: bool = False
) -> tuple[Teacher, list[Draft], list[Tensor]]:
    random = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    leave = (lambda logits: 3 * torch.tanh(logits / 3)) if capped else None
    head = Head(draw(VOCAB, WIDTH), draw(VOCAB), leave)
    teacher = Teacher(draw(TOKENS, WIDTH), head, IDS)
    rows = head.weight[IDS].clone().requires_grad_(own)
    states = [draw(TOKENS, WIDTH).requires_grad_() for _ in range(2)]
    shares = [torch.ones(TOKENS, dtype=torch.float64), torch.rand(TOKENS, generator=random).double()]
    shares[1][:4] = 0
    return (
        teacher,
        [Draft(s, rows, share) for s, share in zip(states, shares, strict=True)],
        [rows, *states],
    )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_the_chunked_loss_and_its_gradients_are_those_of_the_whole(own: bool, capped: bool) -> None:
    teacher, drafts, leaves = teacher_and_drafts(own=own, capped=capped)
    assert teacher.head.bias is not None
    leave = teacher.head.leave or (lambda logits: logits)
    p = torch.softmax(leave(teacher.states @ teacher.head.weight.T + teacher.head.bias), -1)
    expected = torch.stack(
        [
            (
                reference("lk_hybrid", p, leave(draft.states @ draft.rows.T + teacher.head.bias[IDS]))
                * draft.share
            ).sum()
            for draft in drafts
        ]
    ).sum()
    expected.backward()
    gradients = [leaf.grad.clone() if leaf.grad is not None else None for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    total, sums = draft_loss(teacher, drafts, "lk_hybrid", 7)
    (2 * total).backward()
    torch.testing.assert_close(total.detach(), expected.detach())
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert (leaf.grad is None) == (gradient is None)
        if gradient is not None and leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, 2 * gradient)
    assert [int(one.count) for one in sums] == [TOKENS, TOKENS - 4]


def test_matches_are_those_of_the_argmax_over_the_whole_vocabulary() -> None:
    teacher, drafts, _ = teacher_and_drafts()
    assert teacher.head.bias is not None
    best = (teacher.states @ teacher.head.weight.T + teacher.head.bias).argmax(-1)
    found, sums = draft_matches(teacher, drafts, "kl", 5)
    for draft, match, one in zip(drafts, found, sums, strict=True):
        said = IDS[(draft.states @ draft.rows.T + teacher.head.bias[IDS]).argmax(-1)]
        assert match.tolist() == (said == best).tolist()
        assert int(one.match) == int((match & (draft.share > 0)).sum())
    assert found.any()
    assert not found.all()


def test_the_teacher_keeps_the_mass_of_the_whole_vocabulary() -> None:
    teacher, _, _ = teacher_and_drafts()
    wanted = teach(teacher, slice(0, TOKENS))
    assert teacher.head.bias is not None
    p = torch.softmax(teacher.states @ teacher.head.weight.T + teacher.head.bias, -1)
    torch.testing.assert_close(wanted.logp.exp(), p[:, IDS])


def test_the_targets_own_loss_is_its_cross_entropy() -> None:
    teacher, _, _ = teacher_and_drafts()
    labels = torch.arange(TOKENS) % VOCAB
    logits = teacher.states @ teacher.head.weight.T + teacher.head.bias
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(target_loss(teacher, labels), expected)
