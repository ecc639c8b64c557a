"""Settle `auto`: costs measured at the batch and context at hand, agreement as in earlier decodings of the model."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from ssd_infer.drafts.base import Resolved
from ssd_infer.engine.target import Target
from ssd_infer.sparse.costs import recall
from ssd_infer.sparse.pace import Pace

if TYPE_CHECKING:
    from ssd_infer.drafts.sparse_attention import SparseAttentionParams

MAX_GAMMA = 12
RATIO, MIN_BUDGET = 0.05, 192
_PRIOR = 0.85
_SHORTEST = 2
"""A context shorter than this many budgets leaves nothing to save."""

_agreements: weakref.WeakKeyDictionary[nn.Module, dict[tuple[str, float, int], float]] = (
    weakref.WeakKeyDictionary()
)


def agreement_key(params: SparseAttentionParams) -> tuple[str, float, int]:
    """Return what agreement is remembered by."""
    return str(params.selector), float(params.ratio), int(params.min_budget)


def remember(target: Target, key: tuple[str, float, int], agreement: float) -> None:
    """Keep the share of right drafts of a decoding for later `auto`."""
    _agreements.setdefault(target.model, {})[key] = agreement


def remembered(target: Target, key: tuple[str, float, int]) -> float:
    """Return what this model's drafts were right with last, or what is usual for trained models."""
    return _agreements.get(target.model, {}).get(key, _PRIOR)


def pace_of(target: Target, params: SparseAttentionParams, prompts: Sequence[int]) -> Pace:
    """Return the pace of a decoding of `prompts` (lengths): fixed, or adapting by costs at their batch and context."""
    agreement = remembered(target, agreement_key(params))
    if not params.adapt:
        return Pace(agreement, int(params.gamma), None)
    costs = recall(target, max(prompts), len(prompts), float(params.ratio), int(params.min_budget))
    return Pace(agreement, MAX_GAMMA, costs)


def settle_sparse(
    target: Target, params: SparseAttentionParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto`; plain decoding when no γ is predicted to gain. With a given γ nothing is measured or refused."""
    del do_sample
    filled = replace(
        params,
        adapt=params.adapt or params.gamma == "auto",
        selector="pillar" if params.selector == "auto" else params.selector,
        ratio=RATIO if params.ratio == "auto" else params.ratio,
        min_budget=MIN_BUDGET if params.min_budget == "auto" else params.min_budget,
    )
    if params.gamma != "auto":
        return Resolved(filled)
    context, batch = max(map(len, prompts)), len(prompts)
    ratio, floor = float(filled.ratio), int(filled.min_budget)
    if context < _SHORTEST * floor:
        return Resolved(
            None, f"plain decoding: {context} tokens of context are read as fast as {floor} slots"
        )
    costs = recall(target, context, batch, ratio, floor)
    agreement = remembered(target, agreement_key(filled))
    gamma = costs.best_gamma(agreement, MAX_GAMMA)
    speedup = costs.speedup(gamma, agreement)
    if speedup < 1.0:
        note = f"plain decoding: the best predicted speedup is {speedup:.2f} (γ {gamma}, agreement {agreement:.2f})"
        return Resolved(None, note, speedup)
    note = f"auto: {filled.selector}, γ {gamma}, agreement {agreement:.2f}, predicted {speedup:.2f}×"
    return Resolved(replace(filled, gamma=gamma), note, speedup)
