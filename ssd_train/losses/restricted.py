"""Losses of a draft that looks at a part S of the vocabulary, against the target's full distribution p.

q is the draft's distribution over S. p keeps its mass on all of V: α = Σ_S min(p, q) is the probability that one
sampled draft is accepted, and no q can reach more than p(S). Each loss returns its gradient for the draft's logits,
written by hand, so that nothing of size (tokens, K) outlives a chunk.

    kl         p(S)·KL(p_S ‖ q), with p_S = p / p(S)
    tv         1 − α
    nla        −log α
    ce         −log q(argmax_V p), nothing where that token is outside S
    lk_hybrid  λ·kl + (1 − λ)·tv with λ = exp(−3·α), α without a gradient (LK losses, arXiv 2602.23881)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_train.config.draft_losses import LOSSES

_SHARPNESS = 3.0
"""How fast the weight of `kl` falls with α in `lk_hybrid`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the target says of `n` tokens, in float32 or better."""

    logp: Tensor
    """log p on S, `(n, K)`, normalised over all of V."""
    best: Tensor | None
    """Place in S of the most likely token of V, `(n,)` int64, -1 where it is outside S; None where nobody asks."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A draft's loss on `n` tokens."""

    value: Tensor
    """`(n,)`."""
    slope: Tensor
    """Derivative of each value for the draft's logits, `(n, K)`."""
    alpha: Tensor
    """Σ_S min(p, q), `(n,)`."""


def judge(name: str, wanted: Wanted, logits: Tensor) -> Judged:
    """Return loss `name` of the draft's `logits` `(n, K)`."""
    logq = torch.log_softmax(logits, dim=-1)
    p, q = wanted.logp.exp(), logq.exp()
    alpha = torch.minimum(p, q).sum(-1)
    value, slope = _LOSSES[name](_Case(wanted, logq, p, q, alpha))
    return Judged(value, slope, alpha)


def matched(wanted: Wanted, logits: Tensor) -> Tensor:
    """Return bool `(n,)`: whether the most likely token of the draft's `logits` `(n, K)` is the target's."""
    assert wanted.best is not None
    return logits.argmax(-1) == wanted.best


@dataclass(frozen=True, slots=True)
class _Case:
    wanted: Wanted
    logq: Tensor
    p: Tensor
    q: Tensor
    alpha: Tensor


_Found = tuple[Tensor, Tensor]


def _kl(case: _Case) -> _Found:
    """Return Σ_S p (log p − log p(S) − log q) and p(S) q − p."""
    mass = case.p.sum(-1, keepdim=True)
    inside = torch.xlogy(mass, mass)[:, 0]
    value = (case.p * (case.wanted.logp.clamp(min=-1e4) - case.logq)).sum(-1) - inside
    return value, case.q * mass - case.p


def _alpha_slope(case: _Case) -> Tensor:
    """Return the derivative of α for the logits: q (s − Σ q s), s telling where q is the smaller one."""
    below = torch.where(case.q < case.p, case.q, torch.zeros_like(case.q))
    return below - case.q * below.sum(-1, keepdim=True)


def _tv(case: _Case) -> _Found:
    return 1 - case.alpha, -_alpha_slope(case)


def _nla(case: _Case) -> _Found:
    alpha = case.alpha.clamp(min=torch.finfo(case.alpha.dtype).tiny)
    return -alpha.log(), -_alpha_slope(case) / alpha[:, None]


def _ce(case: _Case) -> _Found:
    assert case.wanted.best is not None
    inside = case.wanted.best >= 0
    place = case.wanted.best.clamp(min=0)[:, None]
    one = torch.zeros_like(case.q).scatter_(1, place, 1.0)
    value = torch.where(inside, -case.logq.gather(1, place)[:, 0], torch.zeros_like(case.alpha))
    return value, (case.q - one) * inside[:, None]


def _hybrid(case: _Case) -> _Found:
    share = torch.exp(-_SHARPNESS * case.alpha)
    (kl, to_kl), (tv, to_tv) = _kl(case), _tv(case)
    return share * kl + (1 - share) * tv, share[:, None] * to_kl + (1 - share)[:, None] * to_tv


_LOSSES: dict[str, Callable[[_Case], _Found]] = dict(zip(LOSSES, (_hybrid, _kl, _tv, _nla, _ce), strict=True))
