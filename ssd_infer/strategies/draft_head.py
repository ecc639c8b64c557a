"""The head of a draft: opened for a session as its parameters say, and chosen where they leave it open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch

from ssd_infer.engine.heads.head import DraftHead, FullHead
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.head_report import head_facts
from ssd_infer.tuning.calibration_text import write_calibration_set
from ssd_infer.tuning.draft_heads import FULL, HeadOption, head_bytes, head_options, make_head, usual_size
from ssd_infer.tuning.head_ground import cached_ground
from ssd_infer.tuning.head_study import HeadScores, along_text, head_seconds
from ssd_infer.tuning.memo import Memo

Params = TypeVar("Params", bound=HeadParams)


def option_of(target: Target, params: DraftParams) -> HeadOption:
    """Return the head `params` name; full where they leave it open, or have none."""
    if not isinstance(params, HeadParams) or params.head in ("auto", "full"):
        return FULL
    size = usual_size(target.vocab_size) if isinstance(params.head_size, str) else params.head_size
    return HeadOption(params.head, size)


def open_head(session: Session, params: DraftParams, depth: int) -> DraftHead:
    """Return the head that `params` name, for states after `depth` layers of this session's target."""
    option = option_of(session.target, params)
    if option == FULL:
        return FullHead(session.target)
    return make_head(session.target, option, prompts_of(session), depth)


def extra_head_bytes(target: Target, params: DraftParams) -> int:
    """Return the bytes that the head of `params` holds beside the model's own."""
    return head_bytes(target, option_of(target, params))


def prompts_of(session: Session) -> list[list[int]]:
    """Return the prompts of a session's rows."""
    return [row.tokens[: row.prompt_length] for row in session.rows]


def with_head(params: Params, option: HeadOption) -> Params:
    """Return `params` with the head of `option`."""
    if option == FULL:
        return replace(params, head="full", head_size="auto")
    return replace(params, head=cast(Any, option.kind), head_size=option.size)


def resolved_head(target: Target, params: Params, prompts: Sequence[list[int]], depth: int) -> Params:
    """Return `params` with the head they name, made now; one they leave open is full, for which nothing is measured."""
    option = option_of(target, params)
    make_head(target, option, prompts, depth)
    return with_head(params, option)


def saved_seconds(
    target: Target, params: DraftParams, prompts: Sequence[list[int]], do_sample: bool
) -> float:
    """Return how many seconds less than the full head the head of `params` takes for a token; 0 for the full one."""
    option = option_of(target, params)
    if option == FULL:
        return 0.0
    seconds = head_seconds(target, [option], prompts, do_sample)
    return seconds[FULL] - seconds[option]


_covered: Memo[dict[HeadOption, HeadScores]] = Memo()


def best_by_coverage(
    target: Target,
    params: HeadParams,
    prompts: list[list[int]],
    do_sample: bool,
    predict: Callable[[float, float], float],
) -> tuple[HeadOption, dict[str, Any]]:
    """Return the head with which `predict(seconds saved, coverage)` promises most, and facts of it; the full one first.

    For drafts whose states are not known beforehand but are close to the target's own: what such a head leaves of their
    acceptance is about what it leaves of the target's choices.
    """
    options = head_options(target, params.head, params.head_size)
    if not options:
        return FULL, {}
    seconds = head_seconds(target, options, prompts, do_sample)
    measured = partial(_measure_coverage, target, options, prompts, do_sample)
    found = _covered.cached(target.model, (do_sample, tuple(options)), measured)
    promises = {o: predict(seconds[FULL] - seconds[o], found[o].coverage) for o in options}
    best = max(options, key=promises.__getitem__)
    if params.head == "auto" and promises[best] <= predict(0.0, 1.0):
        return FULL, {}
    return best, head_facts(best, found[best], 1.0, seconds, cached_ground(target, prompts).note)


@torch.inference_mode()
def _measure_coverage(
    target: Target, options: Sequence[HeadOption], prompts: list[list[int]], do_sample: bool
) -> dict[HeadOption, HeadScores]:
    """Return what every option makes of the target's own last states along text of its own."""
    material = write_calibration_set(target, prompts, SamplingParams(do_sample=do_sample))
    states = material.states_with(None)
    texts, sampler = [row.tokens for row in material.session.rows], material.session.sampler
    heads = {option: make_head(target, option, prompts, target.num_layers) for option in options}
    return {
        option: along_text(head, sampler, states, material.reference, texts, material.starts)
        for option, head in heads.items()
    }
