"""Resolve the `auto` of draft `skip_set`: saved result, else a quick search on the prompts at hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ssd_infer.checkpoint.content import loaded_from
from ssd_infer.engine.loop import Planner
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.draft_head import resolved_head, with_head
from ssd_infer.strategies.skip_layers import saved_search as store
from ssd_infer.strategies.skip_layers.bayes import search_bayes
from ssd_infer.strategies.skip_layers.dp import search_dp
from ssd_infer.strategies.skip_layers.search_result import SearchResult
from ssd_infer.strategies.skip_layers.skip_heads import best_head
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.skip_layers.skip_trees import choose_tree
from ssd_infer.tuning import scratch
from ssd_infer.tuning.calibration_text import CalibrationSet, write_calibration_set
from ssd_infer.tuning.draft_heads import FULL, HeadOption, head_options
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.prediction import GAMMAS, THRESHOLDS, predict
from ssd_infer.tuning.race import SURE, least_running, measured_speedup
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs

SEARCH_SECONDS = 60.0
"""Longest Bayesian search when nobody says otherwise."""
_found: Memo[tuple[SearchResult, str]] = Memo()


def remember(
    target: Target, found: SearchResult, do_sample: bool = False, note: str = "", method: str | None = None
) -> None:
    """Let `auto` use `found` for this model from now on; with a `method` only where that method is asked for."""
    _found.put(target.model, (do_sample, method), (found, note))


def cached_search(
    target: Target,
    prompts: list[list[int]],
    do_sample: bool,
    method: str | None = None,
    seconds: float = SEARCH_SECONDS,
) -> tuple[SearchResult, str]:
    """Return this model's skip set and how it was come by: kept, saved, or searched now.

    `method`: `dp`, `bayes` (at most `seconds`), or None for whatever is there, else `dp`.
    """

    def searched() -> tuple[SearchResult, str]:
        found, note = _saved(target, do_sample, method)
        return found or _search(target, prompts, do_sample, method, seconds), note

    return _found.cached(target.model, (do_sample, method), searched)


def resolve_skip_set(
    strategy: Planner,
    target: Target,
    params: SkipSetParams,
    prompts: list[list[int]],
    do_sample: bool,
    method: str | None = None,
    seconds: float = SEARCH_SECONDS,
) -> Resolved:
    """Replace `auto` in skip-set parameters; without any `auto` nothing is measured and nothing is refused.

    A set whose predicted speedup is below 1 is refused, one below `SURE` is put to a race first.
    """
    if params.resolved:
        return Resolved(resolved_head(target, params, prompts, target.num_layers))
    if (reason := scratch.unsupported_reason(target)) is not None:
        missing = "give skip_attention, skip_mlp, gamma and confidence"
        return Resolved(None, f"plain decoding: no set can be searched or calibrated ({reason}); {missing}")
    skips, note, facts = params.skips, "", dict[str, Any]()
    if skips is None:
        found, note = cached_search(target, prompts, do_sample, method, seconds)
        skips, prediction, facts = found.skips, found.prediction, found.facts()
        note = "; ".join(part for part in (_describe(found), note) if part)
    if params.skips is not None or params.gamma != "auto" or params.confidence != "auto":
        prediction = _predict(target, skips, params, prompts, do_sample)
        note = "; ".join(part for part in (prediction.describe(), note) if part)
    prediction, option, of_head = _with_best_head(target, skips, params, prompts, do_sample, prediction)
    tree = choose_tree(target, skips, params, prompts, do_sample, prediction)
    if tree is not None:
        option = FULL if params.head == "auto" else option
        note = f"{tree.describe()}; {note}"
    if option != FULL:
        note, facts = f"head {option.describe()}, {prediction.describe()}; {note}", facts | of_head
    params = resolved_head(target, with_head(params, option), prompts, target.num_layers)
    speedup = prediction.speedup if tree is None else tree.speedup
    if speedup < 1.0 or not len(skips):
        reason = f"plain decoding: no skip set is expected to gain ({note})"
        return Resolved(None, reason, speedup, facts)
    resolved = replace(
        params,
        skip_attention=sorted(skips.attention),
        skip_mlp=sorted(skips.mlp),
        gamma=prediction.gamma,
        confidence=prediction.confidence,
        aim=round(prediction.alpha, 4) if params.aim == "auto" else params.aim,
        tree=1,
    )
    if tree is not None:
        confidence = 0.0 if isinstance(params.confidence, str) else params.confidence
        resolved = replace(
            resolved, gamma=tree.depth, confidence=confidence, tree=tree.nodes, shares=list(tree.shares)
        )
    if params.guard != "auto":
        return Resolved(resolved, note, speedup, facts)
    return _guarded(strategy, target, resolved, prompts, do_sample, Resolved(None, note, speedup, facts))


def _guarded(
    strategy: Planner,
    target: Target,
    resolved: SkipSetParams,
    prompts: list[list[int]],
    do_sample: bool,
    so_far: Resolved,
) -> Resolved:
    """Set the guard of a set that was found; refuse the set when a race says that it loses."""
    predicted = so_far.predicted_speedup or 1.0
    if predicted >= SURE:
        return replace(so_far, params=replace(resolved, guard=1.0))
    raced = measured_speedup(target, strategy, resolved, prompts, do_sample)
    facts = so_far.search | {"raced_speedup": raced}
    if raced < 1.0:
        note = f"plain decoding: measured {raced:.2f}× on a few prompts ({so_far.note})"
        return replace(so_far, note=note, search=facts)
    guard = round(least_running(predicted, raced), 3)
    note = f"{so_far.note}; measured {raced:.2f}× on a few prompts"
    return replace(so_far, params=replace(resolved, guard=guard), note=note, search=facts)


def _search(
    target: Target, prompts: list[list[int]], do_sample: bool, method: str | None, seconds: float
) -> SearchResult:
    """Search now; the seconds reported are those of everything that had to be done for it."""
    begin = time.perf_counter()
    material = write_calibration_set(target, prompts, SamplingParams(do_sample=do_sample))
    costs = cached_sublayer_costs(target, _context(prompts), do_sample)
    found = search_bayes(material, costs, seconds) if method == "bayes" else search_dp(material, costs)
    found.extra["preparation_seconds"] = time.perf_counter() - begin - found.seconds
    return found


def _saved(target: Target, do_sample: bool, method: str | None) -> tuple[SearchResult | None, str]:
    folder = loaded_from(target.config)
    return (None, "") if folder is None else store.load(folder, target, do_sample, method)


def _describe(found: SearchResult) -> str:
    parts = f"{len(found.skips.attention)} attention and {len(found.skips.mlp)} MLP sublayers skipped"
    return f"{parts}, {found.prediction.describe()}, by {found.method} in {found.seconds:.1f} s"


def _predict(
    target: Target, skips: SkipSet, params: SkipSetParams, prompts: list[list[int]], do_sample: bool
) -> Prediction:
    """Choose what is left open of γ and threshold for a given set."""
    material: CalibrationSet = write_calibration_set(target, prompts, SamplingParams(do_sample=do_sample))
    scores = material.score(skip_view(target, skips))
    gammas, thresholds = _open(params)
    costs = cached_sublayer_costs(target, _context(prompts), do_sample)
    return predict(scores, skips, costs, not do_sample, gammas, thresholds)


def _open(params: SkipSetParams) -> tuple[Sequence[int], Sequence[float]]:
    """Return the draft lengths and thresholds that `params` leave open."""
    gammas = GAMMAS if isinstance(params.gamma, str) else [params.gamma]
    return gammas, THRESHOLDS if isinstance(params.confidence, str) else [params.confidence]


def _with_best_head(
    target: Target,
    skips: SkipSet,
    params: SkipSetParams,
    prompts: list[list[int]],
    do_sample: bool,
    full: Prediction,
) -> tuple[Prediction, HeadOption, dict[str, Any]]:
    """Return `full`, that of the full head, or the prediction of a restricted one that is faster or was asked for."""
    options = head_options(target, params.head, params.head_size)
    if not len(skips) or not options:
        return full, FULL, {}
    material = write_calibration_set(target, prompts, SamplingParams(do_sample=do_sample))
    costs = cached_sublayer_costs(target, _context(prompts), do_sample)
    best = best_head(material, skips, costs, options, prompts, *_open(params))
    if params.head == "auto" and best[0].speedup <= full.speedup:
        return full, FULL, {}
    return best


def _context(prompts: list[list[int]]) -> int:
    return max(map(len, prompts)) + 24
