"""Choose draft length, confidence stop, head and tree of a module together, by predicted speedup."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_support import chains_only
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.draft_module.along_text import sampler_for
from ssd_infer.strategies.draft_module.module_costs import beyond
from ssd_infer.strategies.draft_module.module_heads import head_of, option_of, usual_option, with_option
from ssd_infer.strategies.draft_module.module_options import Choice
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.strategies.head_report import head_facts
from ssd_infer.tuning.draft_heads import FULL, HeadOption
from ssd_infer.tuning.head_ground import cached_ground
from ssd_infer.tuning.head_study import HeadScores, head_seconds
from ssd_infer.tuning.rounds import Prediction, steady_speedup
from ssd_infer.tuning.tree_costs import BUDGETS, cached_tree_costs
from ssd_infer.tuning.tree_rounds import BETTER, TreePrediction, best_tree

if TYPE_CHECKING:
    from ssd_infer.strategies.draft_module.module_draft import ModuleDraft

_SHORTLIST = 2
"""Heads, best by what their first drafts promise, whose rounds are followed one by one."""


def resolve_module(
    kind: type[ModuleDraft], target: Target, params: ModuleParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto` in `params`; where γ and the tree are given nothing is measured, and nothing is refused."""
    module = kind.module_of(target)
    if "auto" not in (params.gamma, params.tree):
        option = option_of(module, params, target)
        head_of(target, module, option, prompts)
        confidence = 0.0 if params.confidence == "auto" else params.confidence
        gamma = min(int(params.gamma), kind.farthest(target))
        return Resolved(with_option(replace(params, gamma=gamma, confidence=confidence), option))
    return _chosen(Choice(kind, target, module, params, prompts, do_sample))


def _chosen(choice: Choice) -> Resolved:
    params, reason = choice.params, chains_only(choice.target)
    chain, option, facts = _best_chain(choice)
    tree = None if params.tree == 1 or reason is not None else _best_tree(choice, option)
    if tree is not None and (params.tree != "auto" or tree.speedup >= BETTER * chain.speedup):
        return _with_tree(choice, tree, option, facts)
    said = f"γ {chain.gamma}" + (
        "" if option == usual_option(choice.module) else f", head {option.describe()}"
    )
    note = f"plain decoding: the best predicted speedup is {chain.speedup:.2f} ({said})"
    if chain.speedup < 1.0:
        return Resolved(None, note, chain.speedup, facts)
    note = f"auto: {said}, stop below {chain.confidence:g}, predicted {chain.speedup:.2f}×"
    note += "" if reason is None or params.tree == 1 else f"; chains: {reason}"
    resolved = replace(params, gamma=chain.gamma, confidence=chain.confidence, tree=1)
    head_of(choice.target, choice.module, option, choice.prompts)
    return Resolved(with_option(resolved, option), note, chain.speedup, facts)


def _best_chain(choice: Choice) -> tuple[Prediction, HeadOption, dict[str, Any]]:
    """Return the fastest chain, its head, and facts of a head that looks at a part."""
    options = choice.options()
    firsts = {option: choice.first_scores(option) for option in options}
    gammas = list(choice.gammas)
    promises = {o: steady_speedup(choice.costs(o), firsts[o].scores.mean, gammas) for o in options}
    ranked = sorted(options, key=lambda option: -promises[option])[:_SHORTLIST]
    tried = [
        (
            choice.step_scores(o).best(
                choice.costs(o), gammas, choice.thresholds, greedy=not choice.do_sample
            ),
            o,
        )
        for o in dict.fromkeys([*ranked, *options[:1]])
    ]
    best, option = max(tried, key=lambda pair: pair[0].speedup)
    return best, option, _facts(choice, option, firsts)


def _facts(choice: Choice, option: HeadOption, firsts: dict[HeadOption, HeadScores]) -> dict[str, Any]:
    if option.kind in ("full", "own"):
        return {}
    seconds = head_seconds(choice.target, [option], choice.prompts, choice.do_sample)
    full = (firsts[FULL] if FULL in firsts else choice.first_scores(FULL)).scores.mean
    note = cached_ground(choice.target, choice.prompts).note
    return head_facts(option, firsts[option], full, seconds, note)


@torch.inference_mode()
def _best_tree(choice: Choice, option: HeadOption) -> TreePrediction:
    """Return the best tree; it is judged by what a head that a module was trained with would draft."""
    params, target = choice.params, choice.target
    head = head_of(target, choice.module, usual_option(choice.module), choice.prompts)
    sampler, resume = sampler_for(target, choice.do_sample), choice.kind.resumes(target)
    chances = torch.stack([one.chances(head, sampler, target.vocab_size) for one in choice.drafted], dim=1)
    costs = cached_tree_costs(target, choice.context, choice.do_sample)
    return best_tree(
        chances,
        costs,
        resume,
        BUDGETS[1:] if isinstance(params.tree, str) else (params.tree,),
        list(choice.gammas),
        greedy=not choice.do_sample,
        beyond=beyond(costs, choice.costs(option).draft, resume),
    )


def _with_tree(choice: Choice, tree: TreePrediction, option: HeadOption, facts: dict[str, Any]) -> Resolved:
    if tree.speedup < 1.0:
        return Resolved(None, f"plain decoding: {tree.describe()}", tree.speedup, facts)
    params = choice.params
    resolved = replace(
        params,
        gamma=tree.depth,
        confidence=0.0 if isinstance(params.confidence, str) else params.confidence,
        tree=tree.nodes,
        shares=list(tree.shares),
    )
    head_of(choice.target, choice.module, option, choice.prompts)
    return Resolved(with_option(resolved, option), f"auto: {tree.describe()}", tree.speedup, facts)
