"""Measure exits without gradients: loss, agreement and overlap with the final distribution, acceptance length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_train.losses.chunked import log_probabilities


@dataclass(slots=True)
class ExitMeasure:
    """Measurements of `E` exits on `N` tokens."""

    final: Tensor
    """Summed cross-entropy of the final layer, a scalar."""
    cross_entropy: Tensor
    """Summed cross-entropy of each exit, `(E,)`."""
    match: Tensor
    """Whether exit and final layer have the same most likely token, bool `(E, N)`."""
    overlap: Tensor
    """Σ min(p, q), the probability that speculative sampling accepts, `(E, N)`."""


@torch.no_grad()
def measure_exits(
    final: Tensor,
    exits: Sequence[Tensor],
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    chunk_tokens: int = 512,
) -> ExitMeasure:
    """Measure each exit `(N, d)` against `final` `(N, d)` and `labels` `(N,)`, a chunk of tokens at a time."""
    losses = torch.zeros(len(exits) + 1, dtype=torch.float64 if final.device.type == "cpu" else torch.float32)
    losses = losses.to(final.device)
    match = torch.empty(len(exits), labels.numel(), dtype=torch.bool, device=final.device)
    overlap = torch.empty(len(exits), labels.numel(), dtype=torch.float32, device=final.device)
    for start in range(0, labels.numel(), chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        target = labels[rows, None]
        logp = log_probabilities(final[rows], weight, bias)
        losses[-1] -= logp.gather(1, target).sum()
        best, p = logp.argmax(-1), logp.exp_()
        for index, states in enumerate(exits):
            logq = log_probabilities(states[rows], weight, bias)
            losses[index] -= logq.gather(1, target).sum()
            match[index, rows] = logq.argmax(-1) == best
            overlap[index, rows] = torch.minimum(p, logq.exp_()).sum(-1)
    return ExitMeasure(losses[-1], losses[:-1], match, overlap)


def acceptance_length(accept: Tensor, gamma: int) -> Tensor:
    """Return `(..., T - gamma + 1)` mean emitted tokens per round, 1 + Σ_k Π_{i≤k} a_{t+i}, for every start t.

    `accept` `(..., T)` holds the acceptance probability of each position (0 or 1 when decoding greedily); a window
    never leaves its row. This is simulated: it takes the text as given instead of decoding it.
    """
    gamma = max(1, min(gamma, accept.shape[-1]))
    windows = accept.to(torch.float32).unfold(-1, gamma, 1)
    return 1.0 + windows.cumprod(-1).sum(-1)
