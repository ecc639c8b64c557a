"""Choose the tree that a skip set drafts, by calibration and measured costs."""

from __future__ import annotations

import torch

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_shape import Shape
from ssd_infer.engine.tree_support import chains_only
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.tuning.calibration_text import write_calibration_set
from ssd_infer.tuning.prediction import GAMMAS
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts, cached_sublayer_costs
from ssd_infer.tuning.tree_costs import BUDGETS, cached_tree_costs
from ssd_infer.tuning.tree_rounds import BETTER, TreePrediction, best_tree, rank_chances, round_seconds


@torch.inference_mode()
def choose_tree(
    target: Target,
    skips: SkipSet,
    params: SkipSetParams,
    prompts: list[list[int]],
    do_sample: bool,
    chain: Prediction,
) -> TreePrediction | None:
    """Return the tree to draft in place of `chain`: where one is asked for, or `auto` predicts that it is faster.

    It is judged by what the whole head would draft.
    """
    if params.tree == 1 or chains_only(target) is not None or not len(skips):
        return None
    material = write_calibration_set(target, prompts, SamplingParams(do_sample=do_sample))
    chances = rank_chances(
        material.reference.flatten(0, 1),
        target.logits(material.states_with(skip_view(target, skips))).flatten(0, 1),
        material.session.sampler,
    ).unflatten(0, material.ids.shape)
    context = max(map(len, prompts)) + material.width
    costs = cached_sublayer_costs(target, context, do_sample)
    found = best_tree(
        chances,
        cached_tree_costs(target, context, do_sample),
        skips.first(target.num_layers),
        BUDGETS[1:] if isinstance(params.tree, str) else (params.tree,),
        GAMMAS if isinstance(params.gamma, str) else (params.gamma,),
        greedy=not do_sample,
        beyond=_beyond(skips, costs),
    )
    return None if params.tree == "auto" and found.speedup < BETTER * chain.speedup else found


def tree_seconds(
    target: Target, skips: SkipSet, costs: SublayerCosts, shape: Shape, context: int, do_sample: bool
) -> float:
    """Return the seconds of a round that drafts `shape` with `skips`."""
    resume, known = skips.first(target.num_layers), cached_tree_costs(target, context, do_sample)
    seconds = round_seconds(known, shape, resume, _beyond(skips, costs))
    return seconds * costs.whole.plain / known.plain - costs.saved * shape.tree.depth


def _beyond(skips: SkipSet, costs: SublayerCosts) -> float:
    """Return the seconds of one token in what is kept from the first layer with a skipped sublayer on."""
    whole = costs.whole
    own = whole.step_at(1) + skips.first(whole.num_layers) * whole.layer_at(1)
    return max(0.0, costs.draft(skips) - own)
