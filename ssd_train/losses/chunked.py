"""Head, cross-entropy and distillation of several exits in one pass over chunks of tokens.

Logits are the largest tensor of a language model's step. Here those of one chunk exist at a time: loss and gradient
of a chunk are computed together in the forward pass, so nothing of vocabulary size is kept and nothing is computed
twice. The final distribution of a chunk is computed once and serves every exit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ssd_train.losses import products
from ssd_train.losses.divergence import DIVERGENCES, Pair
from ssd_train.losses.products import accumulator


@dataclass(frozen=True, slots=True)
class ExitTerm:
    """What one exit adds to the loss: factors of its cross-entropy and of its divergences from the final layer."""

    cross_entropy: float = 0.0
    divergences: tuple[tuple[str, float, bool], ...] = ()
    """(name, factor, whether the gradient also reaches the final distribution)."""


@dataclass(slots=True)
class LossSums:
    """Sums over the tokens: `total` carries the gradient, the others are unweighted and detached."""

    total: Tensor
    final: Tensor
    cross_entropy: list[Tensor]
    divergence: list[dict[str, Tensor]]
    agreed: list[Tensor]
    """Tokens on which exit and final layer have the same most likely token; empty unless asked for."""


@dataclass(slots=True)
class _Job:
    """Constants of a call and the sums it collects."""

    terms: Sequence[ExitTerm]
    final_weight: float
    chunk_tokens: int
    detach_head: bool
    count_agreement: bool
    final: list[Tensor] = field(default_factory=list)
    cross_entropy: list[list[Tensor]] = field(default_factory=list)
    divergence: list[dict[str, list[Tensor]]] = field(default_factory=list)
    agreed: list[list[Tensor]] = field(default_factory=list)


def chunked_exit_loss(
    final: Tensor,
    exits: Sequence[Tensor],
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    terms: Sequence[ExitTerm],
    *,
    final_weight: float = 1.0,
    chunk_tokens: int = 512,
    detach_head: bool = False,
    count_agreement: bool = False,
) -> LossSums:
    """Sum the loss of `final` `(N, d)` and of each exit `(N, d)` against `labels` `(N,)`; no label may be ignored.

    `weight` `(V, d)` and `bias` `(V,)` are the shared head; `detach_head` keeps the exits' gradient out of it.
    Gradients are exact, and once-differentiable.
    """
    job = _Job(terms, final_weight, chunk_tokens, detach_head, count_agreement)
    job.cross_entropy = [[] for _ in terms]
    job.divergence = [{name: [] for name, _, _ in term.divergences} for term in terms]
    job.agreed = [[] for _ in terms] if count_agreement else []
    total: Tensor = _ChunkedLoss.apply(job, labels, weight, bias, final, *exits)  # type: ignore[no-untyped-call]
    return LossSums(
        total=total,
        final=_sum(job.final, total),
        cross_entropy=[_sum(parts, total) for parts in job.cross_entropy],
        divergence=[{name: _sum(parts, total) for name, parts in named.items()} for named in job.divergence],
        agreed=[_sum(parts, total) for parts in job.agreed],
    )


def log_probabilities(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `(N, V)` log-probabilities in float32 or better, whatever the precision of the product."""
    return torch.log_softmax(_logits(hidden, weight, bias), dim=-1, dtype=accumulator(hidden.dtype))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not torch.is_grad_enabled() and products.is_fast(hidden, weight):
        return products.multiply(hidden, weight, bias)
    weight = weight.to(hidden.dtype)
    return hidden @ weight.t() if bias is None else torch.addmm(bias.to(hidden.dtype), hidden, weight.t())


class _ChunkedLoss(torch.autograd.Function):
    """Forward computes the gradient too; backward only scales it, once."""

    @staticmethod
    def forward(
        ctx: Any, job: _Job, labels: Tensor, weight: Tensor, bias: Tensor | None, *hidden: Tensor
    ) -> Tensor:
        wanted = _Gradients.for_inputs(ctx.needs_input_grad[2:], weight, bias, hidden)
        whole = _Pass(job, labels, weight, bias, hidden, wanted)
        total = torch.zeros((), dtype=accumulator(hidden[0].dtype), device=weight.device)
        for start in range(0, labels.numel(), job.chunk_tokens):
            total += whole.chunk(slice(start, start + job.chunk_tokens))
        ctx.gradients = wanted
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the chunked loss holds its gradient once; to differentiate again, compute the loss again"
            )
        wanted, ctx.gradients = ctx.gradients, None
        # In place: a copy would be another gradient of the head and of every hidden state.
        scaled = [None if part is None else part.mul_(grad) for part in wanted.in_order()]
        return (None, None, *scaled)


@dataclass(slots=True)
class _Gradients:
    """Accumulators for the inputs that need a gradient; None for the others."""

    weight: Tensor | None
    bias: Tensor | None
    hidden: list[Tensor | None]
    dtypes: list[torch.dtype]

    @staticmethod
    def for_inputs(
        needed: Sequence[bool], weight: Tensor, bias: Tensor | None, hidden: Sequence[Tensor]
    ) -> _Gradients:
        """Allocate what `needed` (weight, bias, then each hidden state) asks for."""
        precise = accumulator(weight.dtype)
        return _Gradients(
            torch.zeros_like(weight, dtype=precise) if needed[0] else None,
            torch.zeros_like(bias, dtype=precise) if bias is not None and needed[1] else None,
            [torch.empty_like(h) if need else None for h, need in zip(hidden, needed[2:], strict=True)],
            [weight.dtype, weight.dtype if bias is None else bias.dtype],
        )

    def in_order(self) -> list[Tensor | None]:
        """Return the gradients in the order of the inputs, in the inputs' types."""
        head = [self.weight, self.bias]
        cast = [None if g is None else g.to(dtype) for g, dtype in zip(head, self.dtypes, strict=True)]
        return [*cast, *self.hidden]

    @property
    def any(self) -> bool:
        """Whether any gradient is wanted at all."""
        return any(part is not None for part in (self.weight, self.bias, *self.hidden))


@dataclass(slots=True)
class _Teacher:
    """One chunk of the final distribution, shared by its exits; `grad` collects what reaches its logits."""

    rows: slice
    target: Tensor
    logp: Tensor
    p: Tensor
    best: Tensor | None
    grad: Tensor | None


@dataclass(slots=True)
class _Pass:
    """One forward pass: tensors to read, sums and gradients to add to."""

    job: _Job
    labels: Tensor
    weight: Tensor
    bias: Tensor | None
    hidden: Sequence[Tensor]
    """Final states first, then each exit's."""
    wanted: _Gradients

    def chunk(self, rows: slice) -> Tensor:
        """Return the weighted loss of one chunk."""
        job, target = self.job, self.labels[rows, None]
        logp = log_probabilities(self.hidden[0][rows], self.weight, self.bias)
        nll = -logp.gather(1, target).sum()
        job.final.append(nll)
        p = logp.exp()
        grad = _nll_gradient(p, target, job.final_weight) if self.wanted.any else None
        best = logp.argmax(-1) if job.count_agreement else None
        teacher = _Teacher(rows, target, logp, p, best, grad)
        total = job.final_weight * nll
        for index in range(len(job.terms)):
            total = total + self.exit(index, teacher)
        if grad is not None:
            self.back_through_head(grad, 0, rows, into_head=True)
        return total

    def exit(self, index: int, teacher: _Teacher) -> Tensor:
        """Return an exit's weighted loss on a chunk; nothing of vocabulary size outlives the call."""
        job, term = self.job, self.job.terms[index]
        logq = log_probabilities(self.hidden[1 + index][teacher.rows], self.weight, self.bias)
        nll = -logq.gather(1, teacher.target).sum()
        job.cross_entropy[index].append(nll)
        if teacher.best is not None:
            job.agreed[index].append((logq.argmax(-1) == teacher.best).sum())
        q = logq.exp()
        grad = None if teacher.grad is None else _nll_gradient(q, teacher.target, term.cross_entropy)
        pair, total = Pair(teacher.logp, teacher.p, logq, q), term.cross_entropy * nll
        for name, factor, into_teacher in term.divergences:
            value = DIVERGENCES[name](pair, factor, grad, teacher.grad if into_teacher else None)
            job.divergence[index][name].append(value)
            total = total + factor * value
        if grad is not None:
            self.back_through_head(grad, 1 + index, teacher.rows, into_head=not job.detach_head)
        return total

    def back_through_head(self, grad: Tensor, index: int, rows: slice, *, into_head: bool) -> None:
        """Carry a chunk's logit gradient to the hidden states and, if `into_head`, to the head."""
        states, wanted = self.hidden[index], self.wanted
        narrow, into = grad.to(states.dtype), wanted.hidden[index]
        if into is not None:
            products.write_input_gradient(narrow, self.weight, into[rows])
        if wanted.bias is not None and into_head:
            wanted.bias += grad.sum(0)
        if wanted.weight is not None and into_head:
            products.add_weight_gradient(narrow, states[rows], wanted.weight)


def _nll_gradient(probabilities: Tensor, target: Tensor, factor: float) -> Tensor:
    grad = probabilities * factor
    return grad.scatter_add_(1, target, grad.new_full(target.shape, -factor))


def _sum(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(parts).sum() if parts else like.detach().new_zeros(())
