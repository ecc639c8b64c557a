"""How many tokens to draft next: γ follows the share of right drafts, down to none when drafting stops paying."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_infer.strategies.sparse_attention.sparse_costs import SparseCosts

_WEIGHT, _POOL = 6.0, 24.0
_FADE, _FORGET = 0.98, 0.9
_PAUSE = 96
"""Plain steps between two looks at whether drafting pays again; a look costs about two of them."""
_LOOK = 2


class DraftLengthController:
    """Estimate from verified drafts how often the k-th is right once its predecessors were, and choose γ by it.

    One share a position, since rows and passages differ: where five drafts were right the sixth is likelier to be.
    Positions that were not judged lately are expected to err as often as the prior says, times how much more or less
    often than it the judged ones erred: bad luck at one position must not hold γ below it for good. The prior counts
    as six verified drafts a position, and as 24 against all that were judged. Old ones fade, five times as fast where
    none follow: what is not drafted is not judged, so only forgetting brings a position back.
    """

    def __init__(
        self, prior: Sequence[float], most: int, costs: SparseCosts | None = None, slots: int = 0
    ) -> None:
        """Start from shares `prior` on `slots` slots a row; without `costs` γ is always `most`."""
        self._prior = list(prior)
        self._right = [0.0 for _ in prior]
        self._judged = [0.0 for _ in prior]
        self.most = most
        self.costs = costs
        self.slots = slots
        self._paused = 0

    @property
    def shares(self) -> list[float]:
        """α_k: how often the draft at position k is right when all before it were."""
        judged = list(zip(self._right, self._judged, self._prior, strict=True))
        usual = _POOL * (1 - sum(self._prior) / max(1, len(self._prior))) + 1e-9
        errors = sum(count - right for right, count, _ in judged)
        expected = sum(count * (1 - prior) for _, count, prior in judged)
        scale = (errors + usual) / (expected + usual)
        return [
            (right + _WEIGHT * max(0.0, 1 - scale * (1 - prior))) / (count + _WEIGHT)
            for right, count, prior in judged
        ]

    @property
    def resumes(self) -> bool:
        """Tell whether the next round may draft, so that the pass before it should be heard."""
        return (self._paused + 1) % _PAUSE == 0

    def gamma(self, limit: int) -> int:
        """Return how many to draft, at most `limit`; 0 while no γ is predicted to gain, but for a look now and then."""
        most = min(self.most, limit)
        if self.costs is None:
            return most
        best, speedup = self.costs.best_gamma(self.slots, self.shares[:most])
        if speedup >= 1:
            self._paused = 0
            return best
        self._paused += 1
        return min(_LOOK, limit) if self._paused % _PAUSE == 0 else 0

    def learn(self, accepted: Sequence[int], drafted: Sequence[int]) -> None:
        """Note what one verify pass accepted of each row's drafts; drafts after a wrong one are not judged."""
        if not any(drafted):
            return
        for place in range(len(self._right)):
            right = sum(taken > place for taken in accepted)
            judged = sum(
                taken >= place and count > place for taken, count in zip(accepted, drafted, strict=True)
            )
            keep = _FADE if judged else _FORGET
            self._right[place] = keep * self._right[place] + right
            self._judged[place] = keep * self._judged[place] + judged
