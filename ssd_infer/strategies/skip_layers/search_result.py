"""What a search returns, whatever its method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.tuning.calibration_text import CalibrationSet
from ssd_infer.tuning.prediction import predict
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts


@dataclass(slots=True)
class SearchResult:
    """The best skip set of a search, what it should give, and what finding it took."""

    skips: SkipSet
    prediction: Prediction
    method: str
    seconds: float
    trials: int
    extra: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return what a report says of the search, JSON-ready."""
        return {
            "method": self.method,
            "seconds": self.seconds,
            "preparation_seconds": self.extra.get("preparation_seconds"),
            "candidates": self.trials,
            "skip_attention": sorted(self.skips.attention),
            "skip_mlp": sorted(self.skips.mlp),
            "gamma": self.prediction.gamma,
            "alpha": self.prediction.alpha,
            "c": self.prediction.c,
            "predicted_speedup": self.prediction.speedup,
        }


@dataclass(slots=True)
class Judge:
    """Price skip sets: exact acceptance on the material, measured costs, best γ and threshold."""

    material: CalibrationSet
    costs: SublayerCosts
    known: dict[SkipSet, Prediction] = field(default_factory=dict)

    def prediction(self, skips: SkipSet) -> Prediction:
        """Return the prediction of `skips`; a set is run once."""
        found = self.known.get(skips)
        if found is None:
            scores = self.material.score(skip_view(self.material.target, skips))
            greedy = self.material.session.sampler.greedy
            found = self.known[skips] = predict(scores, skips, self.costs, greedy)
        return found

    @property
    def best(self) -> tuple[SkipSet, Prediction]:
        """Return the fastest set seen so far."""
        return max(self.known.items(), key=lambda item: item[1].speedup)
