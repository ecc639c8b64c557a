"""The head of a draft module: its own rows, or any head that other drafts have, behind its own norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.heads.rows import HeadRows
from ssd_infer.engine.heads.static import StaticHead
from ssd_infer.engine.target import Target
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.strategies.draft_head import option_of as named_option
from ssd_infer.strategies.draft_head import with_head
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.tuning.draft_heads import FULL, HeadOption, make_head

OWN = HeadOption("own")


def normed_view(target: Target, module: DraftModule) -> Target:
    """Return `target` with the norm of `module` before its head."""
    view = copy.copy(target)
    view.norm = module.norm
    return view


def usual_option(module: DraftModule) -> HeadOption:
    """Return the head a module drafts with where nobody chose one: what it was trained with."""
    return FULL if module.row_weight is None else OWN


def head_of(
    target: Target, module: DraftModule, option: HeadOption, prompts: Sequence[list[int]]
) -> DraftHead:
    """Return the head of `option` for un-normed states of `module`; what it needs is made of `prompts`, and kept."""
    view = normed_view(target, module)
    if option != OWN or module.row_weight is None:
        return make_head(view, FULL if option == OWN else option, prompts, target.num_layers)
    ids = torch.arange(target.vocab_size, device=target.device) if module.ids is None else module.ids
    return StaticHead(view, ids, HeadRows(*module.rows()))


def option_of(module: DraftModule, params: ModuleParams, target: Target) -> HeadOption:
    """Return the head that `params` name; the usual one where they leave it open."""
    if params.head == "auto":
        return usual_option(module)
    return OWN if params.head == "own" else named_option(target, params)


def with_option(params: ModuleParams, option: HeadOption) -> ModuleParams:
    """Return `params` with the head of `option`."""
    return replace(params, head="own", head_size="auto") if option == OWN else with_head(params, option)
