"""The loss of draft modules on a frozen target: teacher, rows of the head and gradients, a chunk of tokens at a time.

The target's logits of a chunk are made once for all drafts of it; of them only log p on S and the place of the most
likely token stay, and only until the chunk is done. Loss and gradient are computed together, as in `chunked.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ssd_train.losses import products
from ssd_train.losses.draft_teacher import Leave, Teacher, multiply, teach
from ssd_train.losses.products import accumulator
from ssd_train.losses.restricted import Wanted, judge, matched


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft of the same `N` tokens."""

    states: Tensor
    """Normed states `(N, d)`, ready for its rows."""
    rows: Tensor
    """What they are multiplied with, `(K, d)`: rows of the target's head, or a trained copy of them."""
    share: Tensor
    """Weight of each token in the loss, `(N,)`; 0 where there is no draft of it."""


@dataclass(slots=True)
class DraftSums:
    """Sums of one draft over the tokens, detached: loss (unweighted), α, and tokens on which both agree."""

    loss: Tensor
    alpha: Tensor
    match: Tensor
    count: Tensor


@dataclass(slots=True)
class _Job:
    teacher: Teacher
    shares: list[Tensor]
    loss: str
    chunk: int
    bias: Tensor | None
    """Of the rows, `(K,)`; the head's own."""
    matching: bool
    sums: list[DraftSums] = field(default_factory=list)
    matches: list[list[Tensor]] = field(default_factory=list)

    @staticmethod
    def of(teacher: Teacher, drafts: Sequence[Draft], loss: str, chunk: int, *, matching: bool) -> _Job:
        """Return the job of these drafts."""
        bias = teacher.head.bias
        kept = None if bias is None else bias.index_select(0, teacher.ids).to(drafts[0].states.dtype)
        return _Job(teacher, [draft.share for draft in drafts], loss, chunk, kept, matching)


def draft_loss(
    teacher: Teacher, drafts: Sequence[Draft], loss: str, chunk_tokens: int, *, matches: bool = False
) -> tuple[Tensor, list[DraftSums]]:
    """Return the weighted loss of all `drafts`, summed, and each draft's sums; agreement only if `matches`.

    Gradients reach the drafts' states and those of their rows that want one; they can be taken once.
    """
    job = _Job.of(teacher, drafts, loss, chunk_tokens, matching=matches)
    wide = (*(draft.states for draft in drafts), *(draft.rows for draft in drafts))
    total: Tensor = _DraftLoss.apply(job, *wide)  # type: ignore[no-untyped-call]
    return total, job.sums


@torch.no_grad()
def draft_matches(
    teacher: Teacher, drafts: Sequence[Draft], loss: str, chunk_tokens: int
) -> tuple[Tensor, list[DraftSums]]:
    """Return bool `(drafts, N)`, on which tokens draft and target agree, and each draft's sums; no gradient."""
    job = _Job.of(teacher, drafts, loss, chunk_tokens, matching=True)
    _run(job, [draft.states for draft in drafts], [draft.rows for draft in drafts], None)
    return torch.stack([torch.cat(parts) for parts in job.matches]), job.sums


class _DraftLoss(torch.autograd.Function):
    """Forward computes the gradient too; backward only scales it, once."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *wide: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad[1:]
        gradients: list[Tensor | None] = [
            torch.zeros_like(value) if need else None for need, value in zip(wanted, wide, strict=True)
        ]
        half = len(wide) // 2
        total = _run(job, wide[:half], wide[half:], gradients if any(wanted) else None)
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the loss holds its gradient once; to differentiate again, compute it again")
        found, ctx.gradients = ctx.gradients, None
        return (None, *(None if part is None else part.mul_(grad) for part in found))


def _run(
    job: _Job, states: Sequence[Tensor], rows: Sequence[Tensor], gradients: list[Tensor | None] | None
) -> Tensor:
    """Go through all chunks; add to the job's sums and to `gradients` (of each draft's states, then of its rows)."""
    count, precise = len(job.teacher.states), accumulator(states[0].dtype)
    total = torch.zeros((), dtype=precise, device=states[0].device)
    job.sums = [DraftSums(*(torch.zeros_like(total) for _ in range(4))) for _ in states]
    job.matches = [[] for _ in states]
    for start in range(0, count, job.chunk):
        part = slice(start, min(start + job.chunk, count))
        wanted = teach(job.teacher, part, best=job.matching or job.loss == "ce")
        for index, draft in enumerate(states):
            total = total + _one(job, index, part, wanted, rows[index], draft[part], gradients)
    return total


def _one(
    job: _Job,
    index: int,
    part: slice,
    wanted: Wanted,
    rows: Tensor,
    states: Tensor,
    gradients: list[Tensor | None] | None,
) -> Tensor:
    """Return the weighted loss of one draft on one chunk."""
    share, leave = job.shares[index][part], job.teacher.head.leave
    raw = multiply(states, rows, job.bias)
    raw = raw.to(accumulator(raw.dtype))
    logits = raw if leave is None else leave(raw)
    found = judge(job.loss, wanted, logits)
    counts = (share > 0).to(found.value.dtype)
    sums = job.sums[index]
    sums.loss += (found.value * counts).sum()
    sums.alpha += (found.alpha * counts).sum()
    sums.count += counts.sum()
    if job.matching:
        match = matched(wanted, logits)
        sums.match += (match * counts).sum()
        job.matches[index].append(match)
    if gradients is not None:
        slope = found.slope.mul_(share[:, None])
        _back(slope if leave is None else _before(leave, raw, slope), rows, states, part, index, gradients)
    return (found.value * share).sum()


def _before(leave: Leave, raw: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient of what the head gave, for the gradient `slope` of what the family made of it."""
    with torch.enable_grad():
        raw = raw.detach().requires_grad_()
        (found,) = torch.autograd.grad(leave(raw), raw, slope)
    return found


def _back(
    slope: Tensor, rows: Tensor, states: Tensor, part: slice, index: int, gradients: list[Tensor | None]
) -> None:
    """Carry the gradient `(n, K)` of a chunk's logits to its states and to the rows."""
    slope = slope.to(states.dtype)
    into, of_rows = gradients[index], gradients[len(gradients) // 2 + index]
    if into is not None:
        products.write_input_gradient(slope, rows, into[part])
    if of_rows is not None:
        products.add_weight_gradient(slope, states, of_rows)
