"""Resolve `auto`: costs measured at the batch and context at hand, agreement as in earlier decodings of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.draft_head import best_by_coverage, resolved_head, with_head
from ssd_infer.strategies.head_report import HEAD_FACTS
from ssd_infer.strategies.sparse_attention.draft_length import DraftLengthController
from ssd_infer.strategies.sparse_attention.slot_budget import budget
from ssd_infer.strategies.sparse_attention.sparse_costs import SparseCosts, cached_costs
from ssd_infer.strategies.sparse_attention.sparse_memory import fits
from ssd_infer.strategies.sparse_attention.sparse_params import SparseAttentionParams
from ssd_infer.tuning.draft_heads import FULL
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.rounds import expected_tokens

MAX_GAMMA = 12
RATIOS, MIN_BUDGET = (0.05, 0.1, 0.2), 192
LEAST_GAIN = 1.1
"""Predicted speedup from which drafting begins: what was measured came out up to a seventh below it."""
_SHORTEST = 2
"""A context shorter than this many budgets leaves nothing to save."""

_shares: Memo[list[float]] = Memo()


def usual_agreement(slots: int) -> float:
    """Return the share of right drafts to expect of a trained model that reads `slots` slots a row.

    A fit to top-1 agreement of a 135M model on real prose: 0.71 with 51 slots, 0.85 with 205, 0.89 with 410.
    """
    return max(0.5, 1 - 0.29 * math.pow(51 / slots, 0.47))


def remember(target: Target, params: SparseAttentionParams, shares: list[float]) -> None:
    """Keep the shares of right drafts of a decoding for later `auto`."""
    _shares.put(target.model, _key(params), shares)


def remembered(target: Target, params: SparseAttentionParams, slots: int) -> list[float]:
    """Return how often this model's drafts were right last, by position, or what is usual for this many slots."""
    return _shares.get(target.model, _key(params)) or [usual_agreement(slots)] * MAX_GAMMA


def _key(params: SparseAttentionParams) -> tuple[str, float, int]:
    return str(params.selector), float(params.ratio), int(params.min_budget)


def draft_length_controller(
    target: Target, params: SparseAttentionParams, prompts: Sequence[int]
) -> DraftLengthController:
    """Return the pace of a decoding of `prompts` (lengths): fixed, or adapting by costs at their batch and context.

    It starts from what is usual, not from earlier decodings: one prompt measured again is drafted for as before.
    """
    context = max(prompts)
    slots = budget(context, float(params.ratio), int(params.min_budget))
    shares = [usual_agreement(slots)] * MAX_GAMMA
    if not params.adapt:
        return DraftLengthController(shares, int(params.gamma))
    return DraftLengthController(shares, MAX_GAMMA, cached_costs(target, context, len(prompts)), slots)


def resolve_sparse_attention(
    target: Target, params: SparseAttentionParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto`; plain decoding when nothing is predicted to gain. With a given γ nothing is measured."""
    if params.gamma != "auto" or params.phases == "balanced":
        params = resolved_head(target, params, prompts, target.num_layers)
    selector = "pillar" if params.selector == "auto" else params.selector
    floor = MIN_BUDGET if isinstance(params.min_budget, str) else params.min_budget
    ratios = RATIOS if isinstance(params.ratio, str) else (params.ratio,)
    cold = params.cold_start
    if (
        cold == "auto"
    ):  # a dense round costs as much as plain decoding; a γ given by hand gets the paper's beginning
        cold = "prompt" if params.gamma == "auto" else "dense"
    options = [
        replace(params, selector=selector, min_budget=floor, ratio=ratio, cold_start=cold) for ratio in ratios
    ]
    if params.gamma != "auto":
        return Resolved(options[0])
    context, batch = max(map(len, prompts)), len(prompts)
    if context < _SHORTEST * floor:
        return Resolved(
            None, f"plain decoding: {context} tokens of context are read as fast as {floor} slots"
        )
    if isinstance(params.ratio, str):
        options = [option for option in options if _fits(target, option, context, batch)] or options[:1]
    costs = cached_costs(target, context, batch)
    speedup, tau, best = max(
        (_predicted(target, costs, option, context) for option in options), key=lambda found: found[0]
    )
    slots = budget(context, float(best.ratio), int(best.min_budget))
    shares = remembered(target, best, slots)

    def with_part(saved: float, coverage: float) -> float:
        return costs.best_gamma(slots, [share * coverage for share in shares], saved)[1]

    option, facts = best_by_coverage(target, best, prompts, do_sample, with_part)
    best = resolved_head(target, with_head(best, option), prompts, target.num_layers)
    if option != FULL:
        found = facts[HEAD_FACTS]
        saved, coverage = found["seconds_full"] - found["seconds"], found["coverage"]
        shares = [share * coverage for share in shares]
        gamma, speedup = costs.best_gamma(slots, shares, saved)
        best, tau = replace(best, gamma=gamma), expected_tokens(shares[:gamma])
    details = f"{best.ratio:.0%} read, γ {best.gamma}, τ {tau:.1f}"
    details += "" if option == FULL else f", head {option.describe()}"
    if speedup < LEAST_GAIN:
        return Resolved(
            None, f"plain decoding: the best predicted speedup is {speedup:.2f} ({details})", speedup, facts
        )
    return Resolved(best, f"auto: {best.selector}, {details}, predicted {speedup:.2f}×", speedup, facts)


def _fits(target: Target, option: SparseAttentionParams, context: int, batch: int) -> bool:
    slots = budget(context, float(option.ratio), int(option.min_budget))
    return fits(target, context, batch, slots + MAX_GAMMA)


def _predicted(
    target: Target, costs: SparseCosts, option: SparseAttentionParams, context: int
) -> tuple[float, float, SparseAttentionParams]:
    """Return the best predicted speedup of `option` over γ, its tokens a verify, and the resolved parameters."""
    slots = budget(context, float(option.ratio), int(option.min_budget))
    shares = remembered(target, option, slots)
    gamma, speedup = costs.best_gamma(slots, shares)
    return speedup, expected_tokens(shares[:gamma]), replace(option, gamma=gamma, adapt=True)
