"""How much each way of drafting has won of late, where a draft has several."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Reliability:
    """Running mean of tokens won by one way of drafting; starts at `prior`, as if seen twice."""

    prior: float
    total: float = field(init=False)
    weight: float = 2.0

    def __post_init__(self) -> None:
        """Start from the prior."""
        self.total = self.prior * self.weight

    @property
    def mean(self) -> float:
        """Tokens won per round, recent rounds weighing more."""
        return self.total / self.weight

    def learn(self, won: float) -> None:
        """Record one round; older rounds fade by a tenth."""
        self.total = 0.9 * self.total + won
        self.weight = 0.9 * self.weight + 1.0
