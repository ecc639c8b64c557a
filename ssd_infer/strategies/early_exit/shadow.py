"""What every exit would have drafted: running agreement and confidence of shadow tokens (DEL, arXiv 2504.05598)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class ShadowCounts:
    """Of one exit: matched and mismatched shadow tokens n⁺ and n⁻, and the sums s⁺ and s⁻ of their confidence."""

    matched: float = 0.0
    missed: float = 0.0
    sure_matched: float = 0.0
    sure_missed: float = 0.0

    @property
    def acceptance(self) -> float:
        """Acceptance a = n⁺ / (n⁺ + n⁻); 0 before anything was seen."""
        seen = self.matched + self.missed
        return self.matched / seen if seen else 0.0

    @property
    def threshold(self) -> float:
        """θ = ½(s⁺/n⁺ + s⁻/n⁻), halfway between the mean confidence of hits and of misses; 0 until both are known."""
        if not self.matched or not self.missed:
            return 0.0
        return 0.5 * (self.sure_matched / self.matched + self.sure_missed / self.missed)

    def fade(self, omega: float) -> None:
        """Multiply every sum by ω."""
        self.matched *= omega
        self.missed *= omega
        self.sure_matched *= omega
        self.sure_missed *= omega

    def add(self, matched: float, missed: float, sure_matched: float, sure_missed: float) -> None:
        """Add the sums of one round."""
        self.matched += matched
        self.missed += missed
        self.sure_matched += sure_matched
        self.sure_missed += sure_missed


@dataclass(slots=True)
class Choice:
    """An exit, a draft length, and the speedup expected of them."""

    exit_layer: int
    gamma: int
    speedup: float


@dataclass(slots=True)
class Shadows:
    """Counts of all candidate exits, fading by ω a round."""

    exits: tuple[int, ...]
    omega: float
    counts: dict[int, ShadowCounts] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing seen."""
        self.counts = {exit_layer: ShadowCounts() for exit_layer in self.exits}

    def fade(self) -> None:
        """Let older rounds count less."""
        for counts in self.counts.values():
            counts.fade(self.omega)

    def learn(self, hits: Tensor, confidence: Tensor, counted: Tensor) -> None:
        """Add shadow tokens `(exits, B, T)` where `counted` `(B, T)` holds; hits may be shares (overlaps)."""
        weight = counted.to(hits.dtype)
        misses = 1 - hits
        sums = [
            (part * weight).sum(dim=(1, 2)) for part in (hits, misses, hits * confidence, misses * confidence)
        ]
        for exit_layer, row in zip(self.exits, torch.stack(sums, dim=1).tolist(), strict=True):
            self.counts[exit_layer].add(*row)

    def choose(self, cost: Sequence[float], verify: Sequence[Sequence[float]]) -> Choice:
        """Return the exit and γ of highest tokens per cost: (1-a^{γ+1})/(1-a) over γ·c + v(γ).

        `cost[i]` and `verify[i][γ-1]` belong to the i-th exit, in plain decoding steps.
        """
        best = Choice(self.exits[0], 1, 0.0)
        for index, exit_layer in enumerate(self.exits):
            a, tau, power = self.counts[exit_layer].acceptance, 1.0, 1.0
            for gamma, v in enumerate(verify[index], start=1):
                power *= a
                tau += power
                speedup = tau / (gamma * cost[index] + v)
                if speedup > best.speedup:
                    best = Choice(exit_layer, gamma, speedup)
        return best


def up_to_first_mismatch(accepted: Sequence[int], counts: Sequence[int], width: int) -> Tensor:
    """Return which of `width` draft positions `(B, width)` count: the accepted ones and the first mismatch."""
    limits = [min(taken + 1, drafted) for taken, drafted in zip(accepted, counts, strict=True)]
    return torch.arange(width)[None, :] < torch.tensor(limits)[:, None]
