"""What calibration remembers of drafted rounds, and what other stopping rules would have made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Round:
    """One row's round: how sure the draft was of every token, and how many the target would have chosen itself."""

    confidence: tuple[float, ...]
    accepted: int

    def judged(self) -> list[tuple[float, bool]]:
        """Return (confidence, right) of the drafts whose predecessors were all right: only those are drafts proper."""
        reach = min(self.accepted + 1, len(self.confidence))
        return [(self.confidence[place], place < self.accepted) for place in range(reach)]


@dataclass(slots=True)
class Rounds:
    """Rounds drafted at full length, without any stop."""

    rounds: list[Round] = field(default_factory=list)

    def shares(self, gamma: int) -> list[float]:
        """Return α_k: how often draft k was right once its predecessors were; half a draft more of each kind counts."""
        found = []
        for place in range(gamma):
            judged = [round_ for round_ in self.rounds if len(round_.confidence) > place <= round_.accepted]
            right = sum(round_.accepted > place for round_ in judged)
            found.append((right + 0.5) / (len(judged) + 1))
        return found

    def outcome(self, gamma: int, stop: float) -> tuple[float, float]:
        """Return mean emitted and drafted tokens of a round of at most `gamma` drafts that ends below `stop`."""
        emitted = drafted = 0
        for round_ in self.rounds:
            length = _length(round_.confidence, gamma, stop)
            drafted += length
            emitted += min(round_.accepted, length) + 1
        count = max(1, len(self.rounds))
        return emitted / count, drafted / count

    def judged(self) -> list[tuple[float, bool]]:
        """Return (confidence, right) of every draft proper."""
        return [pair for round_ in self.rounds for pair in round_.judged()]


def _length(confidence: Sequence[float], gamma: int, stop: float) -> int:
    """Return how many are drafted until one below `stop` was appended."""
    limit = min(gamma, len(confidence))
    return next((place + 1 for place in range(limit) if confidence[place] < stop), limit)


@dataclass(frozen=True, slots=True)
class Trust:
    """A threshold above which drafts are emitted uncompared, and what calibration says of it."""

    threshold: float
    """τ; above 1 nothing is trusted."""
    bound: float | None
    """Upper bound on the share of wrong drafts at or above τ, at 95 % confidence."""
    coverage: float
    """Share of drafts at or above τ."""
    count: int
    """Drafts at or above τ that the bound rests on."""


NOTHING = Trust(1.01, None, 0.0, 0)


def calibrate_trust(judged: Sequence[tuple[float, bool]], eps: float, level: float = 0.95) -> Trust:
    """Return the smallest τ whose upper bound on P(wrong | confidence ≥ τ) is at most `eps`; NOTHING when none is.

    The bound is Clopper and Pearson's (Biometrika 26, 1934) at the given confidence level.
    """
    ordered = sorted(judged, reverse=True)
    best, wrong = NOTHING, 0
    for count, (confidence, right) in enumerate(ordered, start=1):
        wrong += not right
        if count < len(ordered) and ordered[count][0] == confidence:
            continue
        bound = upper_bound(wrong, count, level)
        if bound <= eps:
            best = Trust(confidence, bound, count / len(ordered), count)
    return best


def upper_bound(events: int, trials: int, level: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson bound: the p at which seeing ≤ `events` has probability 1 - `level`."""
    if events >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(events, trials, middle) > 1 - level else (low, middle)
    return high


def _at_most(events: int, trials: int, p: float) -> float:
    """Return P(X ≤ events) for X ~ Binomial(trials, p), 0 < p < 1."""
    whole = math.lgamma(trials + 1)
    logs = (
        whole
        - math.lgamma(x + 1)
        - math.lgamma(trials - x + 1)
        + x * math.log(p)
        + (trials - x) * math.log1p(-p)
        for x in range(events + 1)
    )
    return sum(math.exp(value) for value in logs)
