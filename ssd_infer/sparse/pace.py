"""How many tokens to draft next: γ follows the share of right drafts, down to none when drafting stops paying."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_infer.sparse.costs import SparseCosts

_WEIGHT, _FADE = 12.0, 0.98


class Pace:
    """Estimate agreement from verified drafts and choose the γ with the best predicted speedup.

    Agreement is the share of judged drafts that were right: each row judges its accepted drafts and, unless all were
    accepted, one more. `prior` counts as twelve of them; old ones fade.
    """

    def __init__(self, prior: float, most: int, costs: SparseCosts | None = None, slots: int = 0) -> None:
        """Start from agreement `prior` on `slots` slots a row; without `costs` γ is always `most`."""
        self._right, self._judged = prior * _WEIGHT, _WEIGHT
        self.most = most
        self.costs = costs
        self.slots = slots

    @property
    def agreement(self) -> float:
        """Share of right drafts, recent ones counting more."""
        return self._right / self._judged

    def gamma(self, limit: int) -> int:
        """Return how many to draft, at most `limit`; 0 when no γ is predicted to gain."""
        most = min(self.most, limit)
        if self.costs is None:
            return most
        best = self.costs.best_gamma(self.slots, self.agreement, most)
        return best if self.costs.speedup(best, self.slots, self.agreement) >= 1 else 0

    def learn(self, accepted: Sequence[int], drafted: Sequence[int]) -> None:
        """Note what one verify pass accepted of each row's drafts."""
        right = sum(accepted)
        judged = right + sum(took < count for took, count in zip(accepted, drafted, strict=True))
        keep = _FADE ** (judged / max(1, len(accepted)))
        self._right = self._right * keep + right
        self._judged = self._judged * keep + judged
