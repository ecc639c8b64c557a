"""Settle the `auto` of draft `skip_set`: saved result, else a quick search on the prompts at hand."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from ssd_infer.drafts.base import Resolved
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.engine.views import SkipSet, skip_view
from ssd_infer.search import store
from ssd_infer.search.dp import search_dp
from ssd_infer.search.found import Found
from ssd_infer.search.latency import recall_costs
from ssd_infer.search.material import Material, write_material
from ssd_infer.search.outlook import GAMMAS, THRESHOLDS, Outlook, foresee

if TYPE_CHECKING:
    from ssd_infer.drafts.skip_set import SkipSetParams

_found: weakref.WeakKeyDictionary[nn.Module, dict[bool, tuple[Found, str]]] = weakref.WeakKeyDictionary()


def remember(target: Target, found: Found, do_sample: bool = False, note: str = "") -> None:
    """Let `auto` use `found` for this model from now on."""
    _found.setdefault(target.model, {})[do_sample] = (found, note)


def recall(target: Target, prompts: list[list[int]], do_sample: bool) -> tuple[Found, str]:
    """Return this model's skip set and how it was come by: remembered, saved, or searched now."""
    known = _found.get(target.model, {}).get(do_sample)
    if known is None:
        found, note = _saved(target, do_sample)
        if found is None:
            material = write_material(target, prompts, SamplingParams(do_sample=do_sample))
            found = search_dp(material, recall_costs(target, _context(prompts), do_sample))
        remember(target, found, do_sample, note)
        known = (found, note)
    return known


def settle_skip_set(
    target: Target, params: SkipSetParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto` in skip-set parameters; without any `auto` nothing is measured and nothing is refused."""
    if params.settled:
        return Resolved(params)
    skips, note = params.skips, ""
    if skips is None:
        found, note = recall(target, prompts, do_sample)
        skips, outlook = found.skips, found.outlook
        note = "; ".join(part for part in (_describe(found), note) if part)
    if params.skips is not None or params.gamma != "auto" or params.confidence != "auto":
        outlook = _outlook(target, skips, params, prompts, do_sample)
        note = "; ".join(part for part in (outlook.describe(), note) if part)
    if outlook.speedup < 1.0 or not len(skips):
        return Resolved(None, f"plain decoding: no skip set is expected to gain ({note})", outlook.speedup)
    settled = replace(
        params,
        skip_attention=sorted(skips.attention),
        skip_mlp=sorted(skips.mlp),
        gamma=outlook.gamma,
        confidence=outlook.confidence,
        aim=round(outlook.alpha, 4) if params.aim == "auto" else params.aim,
    )
    return Resolved(settled, note, outlook.speedup)


def _saved(target: Target, do_sample: bool) -> tuple[Found | None, str]:
    folder = store.folder_of(target)
    return (None, "") if folder is None else store.load(folder, target, do_sample)


def _describe(found: Found) -> str:
    parts = f"{len(found.skips.attention)} attention and {len(found.skips.mlp)} MLP sublayers skipped"
    return f"{parts}, {found.outlook.describe()}, by {found.method} in {found.seconds:.1f} s"


def _outlook(
    target: Target, skips: SkipSet, params: SkipSetParams, prompts: list[list[int]], do_sample: bool
) -> Outlook:
    """Choose what is left open of γ and threshold for a given set."""
    material: Material = write_material(target, prompts, SamplingParams(do_sample=do_sample))
    scores = material.score(skip_view(target, skips))
    gammas = GAMMAS if isinstance(params.gamma, str) else [params.gamma]
    thresholds = THRESHOLDS if isinstance(params.confidence, str) else [params.confidence]
    costs = recall_costs(target, _context(prompts), do_sample)
    return foresee(scores, skips, costs, not do_sample, gammas, thresholds)


def _context(prompts: list[list[int]]) -> int:
    return max(map(len, prompts)) + 24
