"""Bayesian optimisation over the 2L sublayer bits: the search of Draft & Verify (arXiv 2309.08168).

Optuna's Gaussian-process sampler proposes, `Judge` answers with the predicted speedup, which is free of timing noise;
or a function of the caller's answers with measured tokens per second.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.skip_layers.search_result import Judge, SearchResult
from ssd_infer.tuning.calibration_text import CalibrationSet
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts

if TYPE_CHECKING:
    import optuna

Objective = Callable[[SkipSet, Prediction], float]
"""(set, its prediction) → what to maximise."""
Watch = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands."""

    trials: int
    seconds: float
    best: Prediction


def probes(num_layers: int) -> list[SkipSet]:
    """Return the two sets every search starts from: every other layer, and every other attention."""
    odd = range(1, num_layers - 1, 2)
    return [SkipSet.of(odd, odd), SkipSet.of(odd, ())]


def search_bayes(
    material: CalibrationSet,
    costs: SublayerCosts,
    seconds: float = 60.0,
    trials: int = 1000,
    objective: Objective | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> SearchResult:
    """Search until `seconds` or `trials` are used up; raises ConfigError when optuna is not installed."""
    begin = time.perf_counter()
    judge, values = Judge(material, costs), dict[SkipSet, float]()
    layers, count = material.target.num_layers, 0
    with _study(seed, objective is None) as study:
        for skips in probes(layers):
            study.enqueue_trial({_name(i): int(bit) for i, bit in enumerate(skips.bits(layers))})
        while count < trials:
            if count and time.perf_counter() - begin >= seconds:
                break
            trial = study.ask()
            skips = SkipSet.from_bits([trial.suggest_int(_name(i), 0, 1) == 1 for i in range(2 * layers)])
            prediction = judge.prediction(skips)
            values[skips] = prediction.speedup if objective is None else objective(skips, prediction)
            study.tell(trial, values[skips])
            count += 1
            if watch is not None:
                best = max(values, key=values.__getitem__)
                watch(Progress(count, time.perf_counter() - begin, judge.known[best]))
    best = max(values, key=values.__getitem__)
    extra = {"objective": "predicted speedup" if objective is None else "measured", "value": values[best]}
    return SearchResult(best, judge.known[best], "bayes", time.perf_counter() - begin, count, extra)


def _name(index: int) -> str:
    return f"{'mlp' if index % 2 else 'attention'}_{index // 2}"


@contextmanager
def _study(seed: int, deterministic: bool) -> Iterator[optuna.Study]:
    """Yield a quiet study with the Gaussian-process sampler."""
    try:
        import optuna

        importlib.import_module("scipy")  # the sampler imports it late, in the middle of a search
    except ImportError as error:
        rule = "needs optuna and scipy, which are not installed"
        remedy = "pip install 'ssd-toolkit[search]', or method=dp"
        raise ConfigError([Problem("method", rule, "bayes", remedy)]) from error
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.GPSampler(seed=seed, deterministic_objective=deterministic)
            yield optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
