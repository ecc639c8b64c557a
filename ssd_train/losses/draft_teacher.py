"""What a frozen target says of tokens, of which as little is kept as a loss on a part of the vocabulary needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_train.losses import products
from ssd_train.losses.products import accumulator
from ssd_train.losses.restricted import Wanted

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


@torch.no_grad()
def teach(teacher: Teacher, part: slice, *, best: bool = True) -> Wanted:
    """Return what the target says of the tokens in `part`; without `best` not which token is its most likely one.

    Logits are made for a part of the vocabulary at a time, which stays in the processor's cache while it is reduced.
    """
    states, ids = teacher.states[part], teacher.ids
    kept = torch.empty(len(states), len(ids), dtype=accumulator(states.dtype), device=states.device)
    sums, peaks = [], []
    for first, logits in _blocks(states, teacher.head):
        low, high = torch.searchsorted(
            ids, torch.tensor([first, first + logits.shape[1]], device=ids.device)
        ).tolist()
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
        logits = multiply(states, head.weight[first : first + width], bias)
        yield first, logits if head.leave is None else head.leave(logits)


@torch.no_grad()
def mass(teacher: Teacher) -> Tensor:
    """Return Σ_t p_t(v) over all tokens, `(V,)` in float64."""
    total = torch.zeros(teacher.head.weight.shape[0], dtype=torch.float64, device=teacher.states.device)
    for logits in _pieces(teacher, slice(None)):
        total += logits.to(accumulator(logits.dtype)).softmax(-1).sum(0, dtype=torch.float64)
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
        logits = multiply(piece, head.weight, head.bias)
        yield logits if head.leave is None else head.leave(logits)


def _log_sum(logits: Tensor) -> Tensor:
    """Return log Σ exp over V, `(n, 1)`, summed in float32 or better whatever the logits are in."""
    return torch.logsumexp(logits.to(accumulator(logits.dtype)), dim=-1, keepdim=True)


def multiply(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `(n, d)` times `(K, d)` transposed, without a gradient, in the precision of `states`."""
    with torch.no_grad():
        if products.is_fast(states, weight):
            return products.multiply(states, weight, bias)
        out = states @ weight.to(states.dtype).t()
        return out if bias is None else out + bias.to(out.dtype)
