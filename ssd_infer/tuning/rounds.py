"""What rounds of drafting and verifying would win, from acceptance known at every position of a text.

Lossless greedy decoding emits the target's own text whatever the draft, so acceptance bits along that text decide every
round exactly; under sampling the overlaps give expectations.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draft_limits(confidence: Tensor, threshold: float) -> Tensor:
    """Return, for each start `(B, T)`, how many tokens are drafted until one below `threshold` was appended."""
    stops = torch.ones_like(confidence)
    unsure = confidence < threshold
    for at in range(confidence.shape[1] - 2, -1, -1):
        stops[:, at] = torch.where(unsure[:, at], 1.0, 1.0 + stops[:, at + 1])
    return stops


def greedy_rounds(bits: Tensor, stops: Tensor, gamma: int) -> tuple[float, float]:
    """Follow the rounds of greedy decoding along every row; return mean accepted and drafted tokens a round."""
    rounds = accepted = drafted = 0
    for flags, quits in zip(bits.tolist(), stops.tolist(), strict=True):
        at, end = 0, len(flags)
        while at < end:
            limit = int(min(gamma, quits[at], end - at))
            run = next((k for k in range(limit) if not flags[at + k]), limit)
            rounds, accepted, drafted, at = rounds + 1, accepted + run, drafted + limit, at + run + 1
    return accepted / max(rounds, 1), drafted / max(rounds, 1)


def expected_rounds(overlap: Tensor, stops: Tensor, gamma: int) -> tuple[float, float]:
    """Return expected accepted and drafted tokens of a round, averaged over all starting positions."""
    width = overlap.shape[1]
    limits = torch.minimum(stops, torch.tensor(float(gamma)))
    survive, accepted = torch.ones_like(overlap), torch.zeros_like(overlap)
    for ahead in range(min(gamma, width)):
        live = width - ahead
        survive = survive[:, :live] * overlap[:, ahead:]
        accepted[:, :live] += survive * (limits[:, :live] > ahead)
    return float(accepted.mean()), float(limits.mean())
