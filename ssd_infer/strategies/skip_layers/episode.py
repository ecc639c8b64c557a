"""One search of a decoding over one stretch of its own text; adopts whatever is predicted to be faster."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.strategies.skip_layers.online import Proposer
from ssd_infer.tuning.calibration_text import CalibrationSet
from ssd_infer.tuning.prediction import predict
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a search is over for good."""

    max_score: float
    """Matchness beyond which nothing better is looked for."""
    tolerance: int
    """Candidates in a row without an improvement."""
    max_trials: int


@dataclass(slots=True)
class Episode:
    """The text candidates are scored on, the best one, and how the search stands.

    All candidates of an episode are scored on the same W positions, so their scores compare. Matchness is SWIFT's:
    the share of positions where the skipped model chooses what the full model chooses (under sampling, the overlap of
    their distributions). What decides is the speedup that acceptance, confidence and measured costs imply.
    """

    material: CalibrationSet
    proposer: Proposer
    costs: SublayerCosts
    rules: StopRules
    gammas: tuple[int, ...]
    thresholds: tuple[float, ...]
    best: SkipSet | None = None
    prediction: Prediction | None = None
    matchness: float = 0.0
    trials: int = 0
    failures: int = 0

    @property
    def over(self) -> bool:
        """Tell whether a stop rule holds; a good score ends the search only after every seed had its turn."""
        rules = self.rules
        return (
            (self.matchness > rules.max_score and not self.proposer.seeds)
            or self.failures > rules.tolerance
            or self.trials >= rules.max_trials
        )

    def next(self) -> SkipSet:
        """Return the next candidate."""
        return self.proposer.next(self.best)

    def put_back(self, skips: SkipSet) -> None:
        """Keep a candidate for later, as if it had not been taken."""
        self.proposer.seeds.insert(0, skips)
        self.proposer.turn -= 1

    def score(self, skips: SkipSet) -> bool:
        """Score a candidate; return True when it became the best."""
        scores = self.material.score(skip_view(self.material.target, skips))
        greedy = self.material.session.sampler.greedy
        prediction = predict(scores, skips, self.costs, greedy, self.gammas, self.thresholds)
        self.proposer.learn(skips, scores.mean)
        self.trials += 1
        if self.prediction is not None and prediction.speedup <= self.prediction.speedup:
            self.failures += 1
            return False
        self.best, self.prediction, self.matchness, self.failures = skips, prediction, scores.mean, 0
        return True
