"""From scores and costs of a skip set to the draft length, the confidence threshold and the speedup to expect."""

from __future__ import annotations

from collections.abc import Iterable

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.tuning.calibration_text import Scores
from ssd_infer.tuning.rounds import Prediction, draft_limits, predict_rounds
from ssd_infer.tuning.sublayer_costs import SublayerCosts

GAMMAS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)


def predict(
    scores: Scores,
    skips: SkipSet,
    costs: SublayerCosts,
    greedy: bool,
    gammas: Iterable[int] = GAMMAS,
    thresholds: Iterable[float] = THRESHOLDS,
) -> Prediction:
    """Return the fastest prediction over `gammas` × `thresholds`."""
    lengths, rounds = list(gammas), costs.skipping(skips)
    found = []
    for threshold in thresholds:
        stops = draft_limits(scores.confidence, threshold)
        found += [
            predict_rounds(scores.acceptance, stops, rounds, gamma, threshold, greedy=greedy)
            for gamma in lengths
        ]
    return max(found, key=lambda prediction: prediction.speedup)
