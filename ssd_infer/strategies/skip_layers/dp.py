"""Dynamic programming over sublayers, in the spirit of CLaSp (arXiv 2505.24196) and KnapSpec (arXiv 2602.20217).

G[i][w] is the hidden state after i sublayers, among those that skipped sublayers of total weight w, that points most
like the full model's own state there:

    G[i][w] = keep: f_i(G[i-1][w])   or   skip: G[i-1][w - w_i]     whichever has the higher cosine to h_i

Weights are the measured saving of an attention or an MLP as small integers. All w of a sublayer run as one batch whose
branches see the committed past and themselves only. Each end state is then priced like any other set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.strategies.skip_layers.branches import Branches
from ssd_infer.strategies.skip_layers.polish import polish
from ssd_infer.strategies.skip_layers.search_result import Judge, SearchResult
from ssd_infer.tuning.calibration_text import CalibrationSet
from ssd_infer.tuning.prediction import predict
from ssd_infer.tuning.sublayer_costs import SublayerCosts

LEAST_COSINE = 0.5
"""Branches whose mean cosine falls below this are dropped (KnapSpec)."""
POSITIONS, SHORT_LIST = 32, 4
"""Positions the program looks at, and end states of each kind measured on all of the material."""
BUDGET = 0.85
"""Share of the total weight that may be skipped (KnapSpec: half; models trained to exit early bear more)."""

Keep = Callable[[int, Tensor], Tensor]
"""(sublayer, states `(J, …, d)`) → states after running it."""


@dataclass(frozen=True, slots=True)
class Path:
    """One end state: which sublayers were skipped to reach it, and the state itself."""

    skipped: tuple[int, ...]
    state: Tensor


def plan(
    start: Tensor,
    full: Sequence[Tensor],
    keep: Keep,
    weights: Sequence[int],
    capacity: int,
    fixed: frozenset[int] = frozenset(),
    least_cosine: float = LEAST_COSINE,
) -> list[Path]:
    """Return the end state of every total skipped weight up to `capacity` that survived, lightest first.

    `start` and `full[i]` `(…, d)` are the full model's states before everything and after sublayer i; `fixed`
    sublayers are never skipped. When every branch but the full model is pruned, its path is the only one.
    """
    states: dict[int, Tensor] = {0: start}
    parents: list[dict[int, tuple[int, bool]]] = []
    for index, goal in enumerate(full):
        order = sorted(states)
        kept = dict(zip(order, keep(index, torch.stack([states[w] for w in order])), strict=True))
        offers = {weight: [(kept[weight], weight, False)] for weight in order}
        if index not in fixed:
            for weight in order:
                if weight + weights[index] <= capacity:
                    offers.setdefault(weight + weights[index], []).append((states[weight], weight, True))
        states, came = {}, {}
        for weight, options in offers.items():
            value, state, origin, skipped = max(
                ((_cosine(state, goal), state, origin, skipped) for state, origin, skipped in options),
                key=lambda option: option[0],
            )
            if weight == 0 or value >= least_cosine:
                states[weight], came[weight] = state, (origin, skipped)
        parents.append(came)
    return [Path(_walk_back(parents, weight), states[weight]) for weight in sorted(states)]


def _cosine(state: Tensor, goal: Tensor) -> float:
    """Return the mean cosine of `(…, d)` states over all positions."""
    return float(cosine_similarity(state.float(), goal.float(), dim=-1).mean())


def _walk_back(parents: Sequence[dict[int, tuple[int, bool]]], weight: int) -> tuple[int, ...]:
    """Follow the parent pointers from an end state; return the skipped sublayers in order."""
    skipped = []
    for index in range(len(parents) - 1, -1, -1):
        weight, was_skipped = parents[index][weight]
        if was_skipped:
            skipped.append(index)
    return tuple(reversed(skipped))


@torch.inference_mode()
def search_dp(
    material: CalibrationSet, costs: SublayerCosts, budget: float = BUDGET, polishing: float = 1.0
) -> SearchResult:
    """Plan on a few positions of the material, then measure the most promising end states on all of it.

    `budget` is the share of the total weight that may be skipped; first and last layer are kept. All early exits
    compete too: their states are by-products. `polishing` is the time spent on single flips of the winner, as a share
    of the time the program took.
    """
    begin = time.perf_counter()
    target = material.target
    layers = target.num_layers
    few = _thin(material)
    weights = list(costs.weights) * layers
    fixed = frozenset({0, 1, 2 * layers - 2, 2 * layers - 1})
    branches = Branches(few)
    start, full = branches.full_states()
    paths = plan(start, full, branches.keep, weights, int(budget * sum(weights)), fixed)
    exits = [Path(tuple(range(2 * e, 2 * layers)), full[2 * e - 1]) for e in range(1, layers)]
    judge = Judge(material, costs)
    for skips in [*_short_list(paths, few, costs), *_short_list(exits, few, costs), SkipSet()]:
        judge.prediction(skips)
    planned = judge.best[1].speedup
    helped = polish(judge, layers, polishing * (time.perf_counter() - begin))
    skips, prediction = judge.best
    extra = {
        "weights": weights[:2],
        "end_states": len(paths),
        "before_polishing": planned,
        "helpful_flips": helped,
    }
    return SearchResult(skips, prediction, "dp", time.perf_counter() - begin, len(judge.known), extra)


def _short_list(paths: list[Path], few: CalibrationSet, costs: SublayerCosts) -> list[SkipSet]:
    """Price end states by their own logits on the few positions; return the best."""
    greedy, layers = few.session.sampler.greedy, few.target.num_layers
    priced = []
    for path in paths:
        skips = SkipSet.from_bits([index in path.skipped for index in range(2 * layers)])
        scores = few.compare(few.target.logits(path.state))
        priced.append((predict(scores, skips, costs, greedy, thresholds=(0.0,)).speedup, len(skips), skips))
    best = sorted(priced, key=lambda item: (-item[0], item[1]))[:SHORT_LIST]
    return [skips for _, _, skips in best]


def _thin(material: CalibrationSet) -> CalibrationSet:
    """Return the last positions of every row, few enough for many branches."""
    width = material.width
    used = min(max(1, POSITIONS // len(material.starts)), width)
    starts = [start + width - used for start in material.starts]
    reference = material.reference[:, width - used :]
    return CalibrationSet(material.session, starts, material.ids[:, width - used :], reference, {})
