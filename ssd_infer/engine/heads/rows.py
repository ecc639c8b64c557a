"""Rows of the target's own head, multiplied by themselves: which heads allow that, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.kernels.products import Product, product
from ssd_infer.engine.target import Target

_PROBED = 64
"""Logits by which it is seen whether what comes after the head looks at each of them alone."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """A contiguous copy of K rows of a target's head, `weight` `(K, d)` and `bias` `(K,)`."""

    weight: Tensor
    bias: Tensor | None

    def times(self, normed: Tensor) -> Tensor:
        """Return what these rows make of normed states `(…, d)`: `(…, K)`, before what comes after the head."""
        return product(normed, self.weight, self.bias)


@torch.no_grad()
def rows_of(target: Target, ids: Tensor) -> HeadRows:
    """Copy the rows `ids` `(K,)` of the head of `target`, which must be a plain matrix (`restricted_reason`)."""
    head: Any = target.head
    index = ids.to(head.weight.device)
    bias = None if head.bias is None else head.bias.detach()[index]
    return HeadRows(head.weight.detach()[index].contiguous(), bias)


def restricted_reason(target: Target) -> str | None:
    """Return why no rows of the head of `target` can be taken by themselves, in one sentence; None where they can."""
    head: Any = target.head
    if type(head) not in (nn.Linear, Product) or type(head.weight) not in (Tensor, nn.Parameter):
        return f"its head is a {type(head).__name__}, not a plain matrix, so that it must be used whole"
    if "forward" in vars(head) or head._forward_hooks or head._forward_pre_hooks:
        return (
            "other code runs with its head (a hook, or a forward of its own), so that it must be used whole"
        )
    if head.weight.is_meta:
        return "the weights of its head are not in memory, so that no rows of it can be copied"
    if head.weight.shape[0] != target.vocab_size:
        rows = head.weight.shape[0]
        return f"its head has {rows} rows for a vocabulary of {target.vocab_size}"
    if not _elementwise(target):
        return "what comes after its head looks at several logits at once"
    return None


def _elementwise(target: Target) -> bool:
    """Tell whether what comes after the head gives every logit what it gives that logit alone."""
    draw = torch.Generator("cpu").manual_seed(0)
    logits = torch.randn(2, _PROBED, generator=draw).to(target.device, target.dtype)
    whole = target.leave(logits)
    some = torch.arange(_PROBED - 1, 0, -3, device=target.device)
    return whole.shape == logits.shape and bool(torch.equal(whole[:, some], target.leave(logits[:, some])))
