"""What rounds of a module win along texts, where the k-th draft of a round may be worse than the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_infer.tuning.costs import RoundCosts
from ssd_infer.tuning.rounds import Prediction, predicted

GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
THRESHOLDS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True, slots=True)
class StepScores:
    """Chance of acceptance and top probability `(D, texts, n)` of the k-th draft of a round, at every position."""

    acceptance: Tensor
    confidence: Tensor

    @property
    def mean(self) -> float:
        """Mean acceptance of a round's first draft."""
        return float(self.acceptance[0].mean())

    def rounds(self, gamma: int, threshold: float, *, greedy: bool) -> tuple[float, float]:
        """Return mean accepted and drafted tokens of rounds of at most `gamma` drafts that stop below `threshold`."""
        return self._greedy(gamma, threshold) if greedy else self._expected(gamma, threshold)

    def _greedy(self, gamma: int, threshold: float) -> tuple[float, float]:
        """Follow the rounds of greedy decoding along every text."""
        right, sure = (self.acceptance > 0.5).tolist(), (self.confidence >= threshold).tolist()
        deepest, texts, length = self.acceptance.shape
        rounds = accepted = drafted = 0
        for text in range(texts):
            at = 0
            while at < length:
                run, alive = 0, True
                for ahead in range(min(gamma, length - at)):
                    step = min(ahead, deepest - 1)
                    drafted += 1
                    alive = alive and right[step][text][at + ahead]
                    run += alive
                    if not sure[step][text][at + ahead]:
                        break
                rounds, accepted, at = rounds + 1, accepted + run, at + run + 1
        return accepted / max(rounds, 1), drafted / max(rounds, 1)

    def _expected(self, gamma: int, threshold: float) -> tuple[float, float]:
        """Return expectations over all starting positions; what lies beyond a text is not drafted."""
        deepest, texts, length = self.acceptance.shape
        right, going = torch.ones((texts, length)), torch.ones((texts, length))
        accepted = drafted = 0.0
        for ahead in range(min(gamma, length)):
            step, live = min(ahead, deepest - 1), length - ahead
            right = right[:, :live] * self.acceptance[step, :, ahead:]
            going = going[:, :live]
            accepted += float((right * going).sum())
            drafted += float(going.sum())
            going = going * (self.confidence[step, :, ahead:] >= threshold)
        return accepted / (texts * length), drafted / (texts * length)

    def best(
        self, costs: RoundCosts, gammas: Iterable[int], thresholds: Iterable[float], *, greedy: bool
    ) -> Prediction:
        """Return the fastest prediction over `gammas` × `thresholds`."""
        limits = list(thresholds)
        found = [
            predicted(costs, gamma, threshold, *self.rounds(gamma, threshold, greedy=greedy))
            for gamma in gammas
            for threshold in limits
        ]
        return max(found, key=lambda one: one.speedup)
