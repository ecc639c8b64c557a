"""The loss of draft modules on a frozen target: teacher, rows of the head and gradients, a chunk of tokens at a time.

The target's logits of a chunk are made once for all drafts of it; of them only log p on S and the place of the most
likely token stay, and only until the chunk is done. Loss and gradient are computed together, as in `chunked.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ssd_train.losses import products
from ssd_train.losses.restricted import Wanted, judge, matched

_ELEMENTS, _CACHED = 1 << 25, 1 << 19
"""The target's logits that exist at a time: at most, and where a processor's cache should hold them."""

Leave = Callable[[Tensor], Tensor]
"""What a family does to logits after the head, element by element."""


@dataclass(frozen=True, slots=True)
class Head:
    """The target's frozen head: `weight` `(V, d)`, `bias` `(V,)` or none, and what comes after it."""

    weight: Tensor
    bias: Tensor | None = None
    leave: Leave | None = None


@dataclass(frozen=True, slots=True)
class Teacher:
    """What the target knows of the `N` counted tokens."""

    states: Tensor
    """Normed states `(N, d)`, ready for the head."""
    head: Head
    ids: Tensor
    """The set S: ascending ids `(K,)`."""


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
    def of(teacher: Teacher, drafts: Sequence[Draft], loss: str, chunk: int, matching: bool) -> _Job:
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
    job = _Job.of(teacher, drafts, loss, chunk_tokens, matches)
    wide = (*(draft.states for draft in drafts), *(draft.rows for draft in drafts))
    total: Tensor = _DraftLoss.apply(job, *wide)  # type: ignore[no-untyped-call]
    return total, job.sums


@torch.no_grad()
def draft_matches(
    teacher: Teacher, drafts: Sequence[Draft], loss: str, chunk_tokens: int
) -> tuple[Tensor, list[DraftSums]]:
    """Return bool `(drafts, N)`, on which tokens draft and target agree, and each draft's sums; no gradient."""
    job = _Job.of(teacher, drafts, loss, chunk_tokens, True)
    _run(job, [draft.states for draft in drafts], [draft.rows for draft in drafts], None)
    return torch.stack([torch.cat(parts) for parts in job.matches]), job.sums


@torch.no_grad()
def teach(teacher: Teacher, part: slice, *, best: bool = True) -> Wanted:
    """Return what the target says of the tokens in `part`; without `best` not which token is its most likely one.

    Logits are made for a part of the vocabulary at a time, which stays in the processor's cache while it is reduced.
    """
    states, ids = teacher.states[part], teacher.ids
    kept = torch.empty(len(states), len(ids), dtype=_accumulator(states.dtype), device=states.device)
    sums, peaks = [], []
    for first, logits in _blocks(states, teacher.head):
        low, high = torch.searchsorted(ids, torch.tensor([first, first + logits.shape[1]], device=ids.device)).tolist()
        kept[:, low:high] = logits.index_select(1, ids[low:high] - first)
        peak = logits.amax(-1, keepdim=True).to(kept.dtype)
        sums.append(peak + (logits.to(kept.dtype) - peak).exp_().sum(-1, keepdim=True).log_())
        peaks.append(peak)
    place = _inside(kept, torch.cat(peaks, 1).amax(1)) if best else None
    return Wanted(kept.sub_(torch.cat(sums, 1).logsumexp(1, keepdim=True)), place)


def _inside(kept: Tensor, peak: Tensor) -> Tensor:
    """Return where in S the highest logit `peak` `(n,)` of the whole vocabulary stands; -1 where it is outside."""
    value, place = kept.max(-1)
    return torch.where(value >= peak, place, torch.full_like(place, -1))


def _blocks(states: Tensor, head: Head) -> Iterator[tuple[int, Tensor]]:
    """Yield the target's logits `(n, v)` of one part of the vocabulary after another, and where each part begins."""
    elements = _CACHED if states.device.type == "cpu" else _ELEMENTS
    width = max(256, elements // max(1, len(states)))
    for first in range(0, head.weight.shape[0], width):
        bias = None if head.bias is None else head.bias[first : first + width]
        logits = _multiply(states, head.weight[first : first + width], bias)
        yield first, logits if head.leave is None else head.leave(logits)


@torch.no_grad()
def mass(teacher: Teacher) -> Tensor:
    """Return Σ_t p_t(v) over all tokens, `(V,)` in float64."""
    total = torch.zeros(teacher.head.weight.shape[0], dtype=torch.float64, device=teacher.states.device)
    for logits in _pieces(teacher, slice(None)):
        total += logits.to(_accumulator(logits.dtype)).softmax(-1).sum(0, dtype=torch.float64)
    return total


@torch.no_grad()
def target_loss(teacher: Teacher, labels: Tensor) -> Tensor:
    """Return the target's own summed cross-entropy of `labels` `(N,)`."""
    total = torch.zeros((), dtype=torch.float64, device=teacher.states.device)
    start = 0
    for logits in _pieces(teacher, slice(None)):
        said = labels[start : start + len(logits), None]
        total += (_log_sum(logits) - logits.gather(1, said)).sum(dtype=torch.float64)
        start += len(logits)
    return total


def _pieces(teacher: Teacher, part: slice) -> Iterator[Tensor]:
    """Yield the target's logits `(n, V)` of the tokens in `part`, so many at a time as memory has room for."""
    head = teacher.head
    for piece in teacher.states[part].split(max(1, _ELEMENTS // head.weight.shape[0])):
        logits = _multiply(piece, head.weight, head.bias)
        yield logits if head.leave is None else head.leave(logits)


def places(ids: Tensor, tokens: Tensor) -> Tensor:
    """Return where `tokens` `(n,)` stand among the ascending `ids` `(K,)`, -1 for those that do not."""
    found = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    return torch.where(ids[found] == tokens, found, torch.full_like(found, -1))


def _log_sum(logits: Tensor) -> Tensor:
    """Return log Σ exp over V, `(n, 1)`, summed in float32 or better whatever the logits are in."""
    return torch.logsumexp(logits.to(_accumulator(logits.dtype)), dim=-1, keepdim=True)


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
    count, precise = len(job.teacher.states), _accumulator(states[0].dtype)
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
    raw = _multiply(states, rows, job.bias)
    raw = raw.to(_accumulator(raw.dtype))
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
    if into is not None and products.is_fast(slope, rows.t()):
        into[part] = products.back_to_input(slope, rows)
    elif into is not None:
        into[part] = slope @ rows.to(slope.dtype)
    if of_rows is not None:
        of_rows += (slope.t() @ states).to(of_rows.dtype)


def _multiply(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `(n, d)` times `(K, d)` transposed, without a gradient, in the precision of `states`."""
    with torch.no_grad():
        if products.is_fast(states, weight):
            return products.multiply(states, weight, bias)
        out = states @ weight.to(states.dtype).t()
        return out if bias is None else out + bias.to(out.dtype)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
