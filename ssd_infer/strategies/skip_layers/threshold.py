"""The confidence threshold of Draft & Verify (arXiv 2309.08168), which follows the acceptance rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AdaptiveThreshold:
    """θ, below which a draft stops, moved so that acceptance stays near `aim` (the paper's A*).

    After each verify: A ← β1·A + (1-β1)·A_round; θ̃ = θ + ε if A ≤ aim else θ - ε; θ ← β2·θ + (1-β2)·θ̃.
    A starts at 0 with each stream, as in the authors' code.
    """

    theta: float
    aim: float
    epsilon: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    acceptance: float = 0.0

    def update(self, accepted: int, drafted: int) -> None:
        """Learn from one verify pass; a round without drafts teaches nothing. θ stays within [0, 1]."""
        if not drafted:
            return
        self.acceptance = self.beta1 * self.acceptance + (1 - self.beta1) * accepted / drafted
        moved = self.theta + (self.epsilon if self.acceptance <= self.aim else -self.epsilon)
        self.theta = min(1.0, max(0.0, self.beta2 * self.theta + (1 - self.beta2) * moved))
