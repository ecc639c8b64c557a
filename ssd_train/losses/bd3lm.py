"""BD3-LM (arXiv 2503.09573): every block denoised given the clean blocks before it.

    loss = Σ_b E_{t_b}[ (1/t_b) · Σ_{i ∈ block b, masked} −log p(x_i | x_{t,b}, x_{<b}) ]

Mask rates from U[β, ω] lower the gradient's variance; only [ε, 1] is a bound on the likelihood. The states of
left-to-right decoding are a second distribution over masks: the rest of a block from a uniform place on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_train.losses.corruption import Corruption, per_block


def corrupt(
    times: Tensor, numbers: Tensor, attended: Tensor, *, low: float = 1e-3, high: float = 1.0
) -> Corruption:
    """Noise a batch: `times` `(B, K)` in [0, 1) for K blocks, `numbers` `(B, L)` uniform, `attended` bool `(B, L)`."""
    t = per_block(low + (high - low) * times, numbers.shape[1])
    return Corruption((numbers < t) & attended, 1 / t)


def corrupt_left_to_right(
    times: Tensor, length: int, attended: Tensor, *, later_weight: float = 1.0
) -> Corruption:
    """Mask each block from place floor(t·block) on, the states that left-to-right decoding goes through.

    The first masked token weighs as much as the block is long, which makes its part an unbiased estimate of the
    autoregressive loss Σ −log p(x_i | x_{<i}); the others are drafts, and weigh `later_weight`.
    """
    size = length // times.shape[1]
    place = torch.arange(length, device=times.device) % size
    first = per_block((times * size).long().clamp(max=size - 1), length)
    weight = torch.where(place == first, float(size), later_weight).to(times.dtype)
    return Corruption((place >= first) & attended, weight)


def denominator(attended: Tensor) -> Tensor:
    """Return the attended tokens."""
    return attended.sum()
