"""Choose the tree that an exit drafts: its nodes, its depth, and which exit, by what calibration and costs predict."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_support import chains_only
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.draft_head import resolved_head
from ssd_infer.strategies.early_exit.exit_calibration import MAX_GAMMA, ExitProfile, cached_profile
from ssd_infer.strategies.early_exit.exit_choice import resolve_chain
from ssd_infer.strategies.early_exit.exit_params import EarlyExitParams
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.text_states import choices, states_of
from ssd_infer.tuning.tree_costs import BUDGETS, cached_tree_costs
from ssd_infer.tuning.tree_rounds import BETTER, TreePrediction, best_tree, rank_chances

_EXITS = 3
"""Exits whose trees are looked at: those of the best chains."""
_chances: Memo[Tensor] = Memo()


def resolve_early_exit(
    target: Target, params: EarlyExitParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto` in early-exit parameters; where all of E, γ and the tree are given, nothing is measured.

    A tree takes the place of a chain where it is asked for, or where `auto` predicts that it is faster. It is judged by
    what the whole head would draft, and drafts with the head that is named, the whole one where none is.
    """
    given = "auto" not in (params.exit_layer, params.gamma, params.tree)
    if params.tree == 1 or given:
        return resolve_chain(target, params, prompts, do_sample)
    if (reason := chains_only(target)) is not None:
        chain = resolve_chain(target, replace(params, tree=1), prompts, do_sample)
        return replace(chain, note=f"{chain.note}; chains: {reason}".removeprefix("; "))
    return _with_tree(target, params, prompts, do_sample)


def _with_tree(
    target: Target, params: EarlyExitParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    known = cached_profile(target, prompts, do_sample)
    if not known.texts:
        nodes = 1 if params.tree == "auto" else params.tree
        return resolve_chain(target, replace(params, tree=nodes), prompts, do_sample)
    exit_layer, best = max(_trees(target, params, known, prompts), key=lambda pair: pair[1].speedup)
    chain = resolve_chain(target, replace(params, tree=1), prompts, do_sample)
    told = chain.predicted_speedup
    if params.tree == "auto" and best.speedup < BETTER * (told or known.best().speedup):
        return chain
    note = f"exit {exit_layer}, {best.describe()}"
    if best.speedup < 1.0:
        return Resolved(None, f"plain decoding: {note}", best.speedup)
    resolved = replace(
        params,
        exit_layer=exit_layer,
        gamma=best.depth,
        confidence=0.0 if params.confidence == "auto" else params.confidence,
        tree=best.nodes,
        shares=list(best.shares),
    )
    return Resolved(resolved_head(target, resolved, prompts, exit_layer), f"auto: {note}", best.speedup)


def _trees(
    target: Target, params: EarlyExitParams, known: ExitProfile, prompts: list[list[int]]
) -> list[tuple[int, TreePrediction]]:
    """Return exits that are looked at, and the best tree of each."""
    if params.exit_layer == "auto":
        ordered = sorted(known.exits, key=lambda layer: -known.best([layer]).speedup)
        exits = ordered[:_EXITS]
    else:
        exits = [int(params.exit_layer)]
    budgets = BUDGETS[1:] if params.tree == "auto" else (int(params.tree),)
    depths = range(1, MAX_GAMMA + 1) if params.gamma == "auto" else (int(params.gamma),)
    context = max(len(prompt) + len(text) for prompt, text in known.texts)
    costs = cached_tree_costs(target, max(context, *map(len, prompts)), known.do_sample)
    found = []
    for layer in exits:
        chances = exit_chances(target, known, layer)
        tree = best_tree(chances, costs, layer, budgets, depths, greedy=not known.do_sample)
        found.append((layer, tree))
    return found


def exit_chances(target: Target, known: ExitProfile, exit_layer: int) -> Tensor:
    """Return the chances `(texts, n, R)` of the exit's choices by rank, along the texts that `known` was made from."""
    key = exit_layer, known.do_sample
    return _chances.cached(target.model, key, lambda: _compared(target, known, exit_layer))


@torch.inference_mode()
def _compared(target: Target, known: ExitProfile, exit_layer: int) -> Tensor:
    sampler = Sampler(SamplingParams(do_sample=known.do_sample), target.device, seed=0)
    found = []
    for text in known.texts:
        early, final = states_of(target, text, (exit_layer,))
        reference = choices(sampler, target.logits(final))
        found.append(rank_chances(reference, target.logits(early), sampler))
    return torch.stack(found)
