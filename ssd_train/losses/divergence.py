"""Divergences between an exit's distribution q and the final one p, with their gradients for the logits.

Written by hand so that one chunk of logits is the only thing of vocabulary size alive at a time, and so that the
gradient can flow into the final distribution as well (`detach_teacher=False`) without a second pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Pair:
    """One chunk of both distributions, each `(N, V)` in float32 or better."""

    logp: Tensor
    p: Tensor
    logq: Tensor
    q: Tensor


Divergence = Callable[[Pair, float, Tensor | None, Tensor | None], Tensor]
"""Return the chunk's summed divergence; add `coefficient` times its gradient to the logits of q and of p."""


def forward_kl(pair: Pair, coefficient: float, grad_q: Tensor | None, grad_p: Tensor | None) -> Tensor:
    """Sum KL(p || q): the exit is pulled towards every token the final distribution finds likely."""
    if grad_q is not None:
        grad_q.add_(pair.q, alpha=coefficient).sub_(pair.p, alpha=coefficient)
    if grad_p is None:
        return _dot(pair.p, pair.logp) - _dot(pair.p, pair.logq)
    return _log_ratio(pair.p, pair.logp - pair.logq, coefficient, grad_p)


def reverse_kl(pair: Pair, coefficient: float, grad_q: Tensor | None, grad_p: Tensor | None) -> Tensor:
    """Sum KL(q || p): the exit is pushed off tokens the final distribution finds unlikely."""
    if grad_p is not None:
        grad_p.add_(pair.p, alpha=coefficient).sub_(pair.q, alpha=coefficient)
    return _log_ratio(pair.q, pair.logq - pair.logp, coefficient, grad_q)


def jensen_shannon(pair: Pair, coefficient: float, grad_q: Tensor | None, grad_p: Tensor | None) -> Tensor:
    """Sum the Jensen-Shannon divergence, the mean KL of p and q to their midpoint."""
    log_mid = pair.p.add(pair.q).mul_(0.5).clamp_(min=torch.finfo(pair.p.dtype).tiny).log_()
    to_p = _log_ratio(pair.p, pair.logp - log_mid, 0.5 * coefficient, grad_p)
    to_q = _log_ratio(pair.q, log_mid.neg_().add_(pair.logq), 0.5 * coefficient, grad_q)
    return 0.5 * (to_p + to_q)


def total_variation(pair: Pair, coefficient: float, grad_q: Tensor | None, grad_p: Tensor | None) -> Tensor:
    """Sum 1 - Σ min(p, q), the probability that speculative sampling rejects a draft (arXiv 2211.17192)."""
    sign = torch.sub(pair.q, pair.p)
    total = 0.5 * sign.abs().sum()
    sign.sign_().mul_(0.5)
    if grad_q is not None:
        _through_softmax(pair.q, sign, coefficient, grad_q)
    if grad_p is not None:
        _through_softmax(pair.p, sign, -coefficient, grad_p)
    return total


DIVERGENCES: dict[str, Divergence] = {
    "forward": forward_kl,
    "reverse": reverse_kl,
    "js": jensen_shannon,
    "tv": total_variation,
}


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.dot(left.view(-1), right.view(-1))


def _log_ratio(a: Tensor, ratio: Tensor, coefficient: float, grad: Tensor | None) -> Tensor:
    """Return Σ a·ratio; its gradient for the logits of a is a·(ratio − row value). Consumes `ratio`."""
    if grad is None:
        return _dot(a, ratio)
    ratio.mul_(a)
    rows = ratio.sum(-1, keepdim=True)
    grad.add_(ratio, alpha=coefficient)
    grad.addcmul_(a, rows, value=-coefficient)
    return rows.sum()


def _through_softmax(a: Tensor, slope: Tensor, coefficient: float, grad: Tensor) -> None:
    """Add the logit gradient of a function with derivative `slope` for the probabilities `a`."""
    weighted = a * slope
    grad.add_(weighted, alpha=coefficient)
    grad.addcmul_(a, weighted.sum(-1, keepdim=True), value=-coefficient)
