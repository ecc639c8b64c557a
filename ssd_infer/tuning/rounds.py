"""What rounds of drafting and verifying would win, from acceptance known at every position of a text.

Lossless greedy decoding emits the target's own text whatever the draft, so acceptance bits along that text decide every
round exactly; under sampling the overlaps give expectations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_infer.tuning.costs import RoundCosts


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one draft should give at a γ and a threshold; `drafted` is the mean number of drafts a round."""

    gamma: int
    confidence: float
    alpha: float
    tau: float
    drafted: float
    c: float
    verify_ratio: float
    speedup: float

    def describe(self) -> str:
        """Say the prediction in a few words."""
        stop = f", stop below {self.confidence:g}" if self.confidence else ""
        return (
            f"predicted {self.speedup:.2f}x (γ {self.gamma}{stop}, α {self.alpha:.2f}, "
            f"c {self.c:.2f}, verify {self.verify_ratio:.2f})"
        )


def predict_rounds(
    acceptance: Tensor, stops: Tensor, costs: RoundCosts, gamma: int, threshold: float, *, greedy: bool
) -> Prediction:
    """Return what rounds of at most `gamma` drafts give along texts `(B, T)` known to `acceptance` and `stops`.

    `stops` are the `draft_limits` of `threshold`; acceptance is bits when `greedy`, probabilities otherwise.
    """
    accepted, drafted = (greedy_rounds if greedy else expected_rounds)(acceptance, stops, gamma)
    return predicted(costs, gamma, threshold, accepted, drafted)


def predicted(costs: RoundCosts, gamma: int, threshold: float, accepted: float, drafted: float) -> Prediction:
    """Return what rounds give that accept and draft so many tokens each, in the mean."""
    alpha, tau = accepted / drafted if drafted else 0.0, 1 + accepted
    found = costs.c, costs.v(drafted), costs.speedup(tau, drafted)
    return Prediction(gamma, threshold, alpha, tau, drafted, *found)


def expected_tokens(shares: Sequence[float]) -> float:
    """Return τ = 1 + Σ_k Π_{i≤k} α_i, tokens a verify when draft k is right with probability α_k."""
    total = survive = 1.0
    for share in shares:
        survive *= share
        total += survive
    return total


def steady_speedup(costs: RoundCosts, share: float, gammas: Iterable[int]) -> float:
    """Return the best speedup among `gammas` of drafts of which each is right with the chance `share`."""
    return max(costs.speedup(expected_tokens([share] * gamma), gamma) for gamma in gammas)


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
