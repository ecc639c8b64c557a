"""Stop drafting in a stream that it does not speed up, and look again now and then."""

from __future__ import annotations

import math
from typing import Any

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.strategies.skip_layers.online import RunningGain
from ssd_infer.tuning.sublayer_costs import SublayerCosts

TRUST_AFTER = 6
"""Rounds with a draft before a loss counts."""
FADE = 0.97
"""What an older round still counts when the next one comes in."""
PAUSE = 64
"""Plain rounds before drafting is tried again; each later pause is twice as long."""


class GainGuard:
    """Tell every round whether to draft, by the speedup that recent acceptance and measured costs imply."""

    def __init__(
        self, costs: SublayerCosts, skips: SkipSet, least: float, round_seconds: float | None = None
    ) -> None:
        """Stop a draft with `skips` whose running speedup is below `least`; nothing is known yet.

        `round_seconds`: what a round costs however much it accepts, where it drafts a tree; None for chains.
        """
        self._costs, self._skips, self.least = costs, skips, least
        self._round_seconds = round_seconds
        self._wait = self.stops = self.plain_rounds = 0
        self.speedup: float | None = None
        self._forget()

    def _forget(self) -> None:
        """Start counting anew."""
        self._gain = RunningGain(0.0, 0.0, weight=0.0, fade=FADE)
        self._squares, self._learned = 0.0, 0

    def drafts(self) -> bool:
        """Tell whether this round drafts; called once a round."""
        if self._wait:
            self._wait -= 1
            self.plain_rounds += 1
            return False
        return True

    def learn(self, accepted: float, drafted: float) -> None:
        """Take in one round's mean accepted and drafted tokens a row; a loss ends drafting for a while.

        A loss is a running speedup below the bar even if acceptance is a standard error better than it looks: a few
        unlucky rounds of long drafts are none.
        """
        self._gain.learn(accepted, drafted)
        self._squares = FADE * self._squares + accepted**2
        self._learned += 1
        if self._learned < TRUST_AFTER:
            return
        self.speedup = self._running()
        if self._running(more=self._standard_error()) < self.least:
            self._wait = PAUSE * 2**self.stops
            self.stops += 1
            self._forget()

    def _running(self, more: float = 0.0) -> float:
        """Return the speedup of recent rounds, had each accepted `more` tokens."""
        if self._round_seconds is None:
            return self._gain.speedup(self._costs, self._skips, more)
        return (1 + self._gain.per_round[0] + more) * self._costs.whole.plain / self._round_seconds

    def _standard_error(self) -> float:
        """Return the standard error of the accepted tokens a round, older rounds weighing less."""
        mean, weight = self._gain.per_round[0], self._gain.weight
        return math.sqrt(max(0.0, self._squares / weight - mean**2) / weight)

    def report(self) -> dict[str, Any]:
        """Return what the guard saw and did, and a note when it stopped the draft."""
        note = f"drafting was stopped: its running speedup was below {self.least:.2f}" if self.stops else ""
        return {
            "running_speedup": self.speedup,
            "stopped": self.stops,
            "rounds_without_draft": self.plain_rounds,
            "note": note,
        }
