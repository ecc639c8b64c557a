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


@dataclass(frozen=True, slots=True)
class Rule:
    """How far a round drafts."""

    gamma: int
    """Most drafts that have to be compared."""
    stop: float = 0.0
    """A round ends after a draft less sure than this."""
    follow: bool = False
    """γ is doubled after a round that was right throughout, and cut to what was right after any other."""
    threshold: float = math.inf
    """Drafts at least this sure are not compared."""
    window: int = 64
    """Most drafts of a round."""


@dataclass(slots=True)
class Pace:
    """γ of the next round: the one given, or one that follows what was accepted and never exceeds it."""

    gamma: int
    follow: bool
    now: int = 0

    def __post_init__(self) -> None:
        """Begin with all of γ."""
        self.now = self.gamma

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Note a round, one entry a row; the row that got furthest sets the pace."""
        if self.follow:
            pairs = zip(drafted, accepted, strict=True)
            wishes = [2 * self.now if right == count else right for count, right in pairs]
            self.now = min(self.gamma, max(1, *wishes))


@dataclass(slots=True)
class Rounds:
    """Rounds drafted at full length, without any stop, one after the other."""

    rounds: list[Round] = field(default_factory=list)

    def text(self) -> list[tuple[float, bool]]:
        """Return (confidence, right) of the draft for every emitted token.

        The token after a round that was right throughout was not drafted and counts as that round's last draft.
        """
        found = []
        for round_ in self.rounds:
            found += round_.judged()
            if round_.confidence and round_.accepted == len(round_.confidence):
                found.append((round_.confidence[-1], True))
        return found

    def judged(self) -> list[tuple[float, bool]]:
        """Return (confidence, right) of every draft proper."""
        return [pair for round_ in self.rounds for pair in round_.judged()]


def play(text: Sequence[tuple[float, bool]], rule: Rule) -> list[tuple[int, int]]:
    """Return (emitted, drafted) of each round that `rule` would have made of `text`, which is `Rounds.text`."""
    pace, found, at = Pace(rule.gamma, rule.follow), list[tuple[int, int]](), 0
    while at < len(text):
        drafted, accepted = _round(text[at : at + rule.window], rule, pace.now)
        found.append((accepted + 1, drafted))
        pace.learn([drafted], [accepted])
        at += accepted + 1
    return found


def _round(ahead: Sequence[tuple[float, bool]], rule: Rule, gamma: int) -> tuple[int, int]:
    """Return how many tokens a round drafts along `ahead`, and how many of them are emitted."""
    drafted = compared = 0
    accepted: int | None = None
    for confidence, right in ahead:
        unverified = confidence >= rule.threshold
        if accepted is None and not right and not unverified:
            accepted = drafted
        drafted += 1
        compared += not unverified
        if compared >= gamma or confidence < rule.stop:
            break
    return drafted, drafted if accepted is None else accepted


@dataclass(frozen=True, slots=True)
class Trust:
    """A threshold above which drafts are emitted uncompared, and what calibration says of it."""

    threshold: float
    """τ; above 1 nothing is unverified."""
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
