"""What a drafted token of a module costs: measured as a draft runs it, beside plain passes of the target."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ssd_infer.engine.target import Target
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.tuning.costs import Costs, RoundCosts, context_class, quiet_seconds, session_at, timed
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.tree_costs import cached_tree_costs

if TYPE_CHECKING:
    from ssd_infer.strategies.draft_module.module_draft import ModuleDraft

_REPEATS = 15
_seconds: Memo[float] = Memo()


def chain_costs(
    kind: type[ModuleDraft], target: Target, params: ModuleParams, context: int, do_sample: bool
) -> RoundCosts:
    """Return what rounds of a chain cost with the head of `params`, measured the first time."""
    draft = step_seconds(kind, target, params, context, do_sample)
    return cached_tree_costs(target, context, do_sample).exit(kind.resumes(target), draft)


def step_seconds(
    kind: type[ModuleDraft], target: Target, params: ModuleParams, context: int, do_sample: bool
) -> float:
    """Return the seconds of one drafted token with the head of `params`, `context` tokens into a text."""
    longest = context_class(context)
    key = kind.module_of(target).serial, params.head, params.head_size, longest, do_sample
    return _seconds.cached(target.model, key, lambda: _measure(kind, target, params, longest, do_sample))


@torch.inference_mode()
def _measure(
    kind: type[ModuleDraft], target: Target, params: ModuleParams, context: int, do_sample: bool
) -> float:
    session = session_at(target, context, 1, 4, do_sample)
    draft = kind(session, replace(params, gamma=2, confidence=0.0, tree=1))
    draft.head.follow(session.rows)
    session.begin_round()
    draft.stand()
    took = [timed(partial(_one_token, draft), target.device) for _ in range(_REPEATS + 1)]
    return quiet_seconds(took[1:])


def _one_token(draft: ModuleDraft) -> None:
    """Draft a token after one that was drafted before it."""
    hidden = draft.step(draft.session.pending, 1)
    draft.session.sampler.choose(draft.head.scores(hidden).last())


def beyond(whole: Costs, draft: float, resume: int) -> float:
    """Return the seconds of one drafted token beside what trees count anyway: the layers shared and a whole head."""
    return draft - whole.step_at(1) - resume * whole.layer_at(1)
