"""From scores and costs to the draft length, the confidence threshold and the speedup to expect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.tuning.calibration_text import Scores
from ssd_infer.tuning.rounds import draft_limits, expected_rounds, greedy_rounds
from ssd_infer.tuning.sublayer_costs import SublayerCosts

GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one skip set should give at its best γ and threshold; `drafted` is the mean number of drafts a round."""

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


def predict(
    scores: Scores,
    skips: SkipSet,
    costs: SublayerCosts,
    greedy: bool,
    gammas: Iterable[int] = GAMMAS,
    thresholds: Iterable[float] = THRESHOLDS,
) -> Prediction:
    """Return the fastest prediction over `gammas` × `thresholds`."""
    c = costs.ratio(skips)
    found = []
    gammas = list(gammas)
    for threshold in thresholds:
        stops = draft_limits(scores.confidence, threshold)
        for gamma in gammas:
            rounds = greedy_rounds if greedy else expected_rounds
            accepted, drafted = rounds(scores.acceptance, stops, gamma)
            v = costs.verify_ratio(drafted, skips)
            alpha = accepted / drafted if drafted else 0.0
            speedup = (1 + accepted) / (drafted * c + v)
            found.append(Prediction(gamma, threshold, alpha, 1 + accepted, drafted, c, v, speedup))
    return max(found, key=lambda prediction: prediction.speedup)
