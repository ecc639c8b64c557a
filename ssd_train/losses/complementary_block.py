"""Complementary masks (Fast-dLLM v2): a block's mask and its complement are both trained.

Every supervised token is masked in exactly one of the two, so it is learned once a step; plain cross-entropy without
1/t, divided by masked tokens, which are the supervised tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_train.losses.corruption import Corruption, per_block
from ssd_train.losses.llada import mask_probability


def corrupt(
    times: Tensor, numbers: Tensor, supervised: Tensor, eps: float = 1e-3
) -> tuple[Corruption, Corruption]:
    """Return both noised batches: `times` `(B, K)` for K blocks, `numbers` `(B, L)`, `supervised` bool `(B, L)`."""
    p = per_block(mask_probability(times, eps), numbers.shape[1])
    chosen, weight = numbers < p, torch.ones_like(numbers)
    return Corruption(chosen & supervised, weight), Corruption(~chosen & supervised, weight)


def denominator(supervised: Tensor) -> Tensor:
    """Return the supervised tokens: the masked ones of both masks together."""
    return supervised.sum()
