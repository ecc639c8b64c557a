"""Cross-entropy with label smoothing, summed over the counted positions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def smoothed_cross_entropy_sum(
    logits: Tensor, targets: Tensor, mask: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the smoothed and the plain cross-entropy of `logits` `(B, U, V)`, each summed over `mask` `(B, U)`.

    Smoothing ε spreads that much of the target over the vocabulary (arXiv 1512.00567, section 7).
    """
    log_probabilities = functional.log_softmax(logits[mask].float(), dim=-1)
    plain = -log_probabilities.gather(1, targets[mask][:, None]).sum()
    if smoothing == 0:
        return plain, plain
    spread = -log_probabilities.mean(dim=-1).sum()
    return (1 - smoothing) * plain + smoothing * spread, plain


def correct(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return how many of the counted positions the most probable token gets right."""
    return torch.as_tensor((logits.argmax(dim=-1) == targets)[mask].sum())
