"""Connectionist temporal classification, summed over utterances, with the infeasible ones masked and not counted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def feasible(labels: Tensor, label_lengths: Tensor, frames: Tensor) -> Tensor:
    """Return bool `(B,)`: whether each label `(B, U)` fits its frames.

    A label needs a frame a token and one blank between equal neighbours: T ≥ U + R (Graves et al. 2006, section 3).
    """
    return frames >= label_lengths + repeats(labels, label_lengths)


def repeats(labels: Tensor, label_lengths: Tensor) -> Tensor:
    """Return int64 `(B,)`: equal neighbours in each label `(B, U)`, padding not counted."""
    inside = torch.arange(1, labels.shape[1], device=labels.device) < label_lengths[:, None]
    return ((labels[:, 1:] == labels[:, :-1]) & inside).sum(dim=1)


def ctc_loss_sum(
    logits: Tensor, frames: Tensor, labels: Tensor, label_lengths: Tensor, keep: Tensor, blank: int
) -> Tensor:
    """Return the negative log likelihood, in nats, summed over the rows `keep` bool `(B,)` of logits `(B, T, V)`.

    Rows left out get neither loss nor gradient: an infeasible one would be infinite, its gradient NaN. Computed in
    float32. Raises ValueError when a kept label holds the blank, which torch would silently accept.
    """
    inside = torch.arange(labels.shape[1], device=labels.device) < label_lengths[:, None]
    if bool(((labels == blank) & inside & keep[:, None]).any()):
        raise ValueError(f"labels: must not hold the blank, id {blank}; look for characters without an id")
    rows = keep.nonzero()[:, 0]
    if not len(rows):
        return logits.sum() * 0.0
    log_probabilities = functional.log_softmax(logits[rows].float(), dim=-1).transpose(0, 1)
    return functional.ctc_loss(
        log_probabilities, labels[rows], frames[rows], label_lengths[rows], blank=blank, reduction="sum"
    )
