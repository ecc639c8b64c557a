"""Improve a skip set sublayer by sublayer: keep every flip that is predicted to be faster."""

from __future__ import annotations

import random
import time

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.strategies.skip_layers.search_result import Judge


def polish(judge: Judge, num_layers: int, seconds: float, seed: int = 0) -> int:
    """Flip single sublayers of the judge's best set in random order; return the flips that helped.

    Ends when no flip of the best set helps, or after `seconds`.
    """
    begin, order, helped = time.perf_counter(), random.Random(seed), 0
    skips, prediction = judge.best
    untried = order.sample(range(2 * num_layers), 2 * num_layers)
    while untried and time.perf_counter() - begin < seconds:
        bits = skips.bits(num_layers)
        flipped = untried.pop()
        bits[flipped] = not bits[flipped]
        rival = SkipSet.from_bits(bits)
        found = judge.prediction(rival)
        if found.speedup > prediction.speedup:
            skips, prediction, helped = rival, found, helped + 1
            rest = [index for index in range(2 * num_layers) if index != flipped]
            untried = order.sample(rest, len(rest))
    return helped
