"""MDLM (arXiv 2406.07524): the continuous-time bound with the log-linear schedule.

    loss = E_t[ w(t) · Σ_{i masked} −log p(x_i | x_t) ],   w(t) = −α'_t / (1 − α_t) = 1/t

σ(t) = −log(1 − (1−ε)t), so a token is masked with probability 1 − α_t = (1−ε)t. Divided by attended tokens.
"""

from __future__ import annotations

from torch import Tensor

from ssd_train.losses.corruption import Corruption


def keep_probability(t: Tensor, eps: float = 1e-3) -> Tensor:
    """Return α_t = 1 − (1−ε)t."""
    return 1 - (1 - eps) * t


def weight(t: Tensor) -> Tensor:
    """Return w(t) = −α'_t / (1 − α_t), which is 1/t for the log-linear schedule whatever ε is."""
    return 1 / t


def corrupt(times: Tensor, numbers: Tensor, attended: Tensor, eps: float = 1e-3) -> Corruption:
    """Noise a batch: `times` `(B, 1)` in [0, 1), `numbers` `(B, L)` uniform, `attended` bool `(B, L)`."""
    t = eps + (1 - eps) * times
    masked = (numbers < 1 - keep_probability(t, eps)) & attended
    return Corruption(masked, weight(t).expand_as(numbers))


def denominator(attended: Tensor) -> Tensor:
    """Return the attended tokens; unmasked ones count, their loss is zero."""
    return attended.sum()
