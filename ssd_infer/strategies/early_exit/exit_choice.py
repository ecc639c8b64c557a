"""Choose exit, draft length, confidence stop and head of a chain together, by predicted speedup."""

from __future__ import annotations

from dataclasses import replace

from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.draft_head import resolved_head, with_head
from ssd_infer.strategies.early_exit.exit_calibration import THRESHOLDS, cached_profile
from ssd_infer.strategies.early_exit.exit_heads import best_of_heads
from ssd_infer.strategies.early_exit.exit_params import EarlyExitParams
from ssd_infer.tuning.draft_heads import FULL


def resolve_chain(
    target: Target, params: EarlyExitParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto` in early-exit parameters; with E and γ given nothing is measured and nothing is refused.

    The confidence stop is part of the choice where γ is: with both given by hand, `auto` confidence means none.
    """
    if params.exit_layer != "auto" and params.gamma != "auto":
        confidence = 0.0 if params.confidence == "auto" else params.confidence
        depth = int(params.exit_layer)
        return Resolved(resolved_head(target, replace(params, confidence=confidence), prompts, depth))
    known = cached_profile(target, prompts, do_sample)
    exits = None if params.exit_layer == "auto" else [int(params.exit_layer)]
    if exits is not None and exits[0] not in known.exits:
        exits = [known.exits[-1]]
    gammas = None if params.gamma == "auto" else [int(params.gamma)]
    thresholds = THRESHOLDS if params.confidence == "auto" and gammas is None else ()
    best, option, facts = best_of_heads(target, known, params, prompts, exits, gammas, thresholds)
    chosen = f"exit {best.exit_layer}, γ {best.gamma}" + (
        "" if option == FULL else f", head {option.describe()}"
    )
    if best.speedup < 1.0:
        note = f"plain decoding: the best predicted speedup is {best.speedup:.2f} ({chosen})"
        return Resolved(None, note, best.speedup, facts)
    exit_layer = best.exit_layer if params.exit_layer == "auto" else params.exit_layer
    confidence = best.confidence if params.confidence == "auto" else params.confidence
    resolved = replace(params, exit_layer=exit_layer, gamma=best.gamma, confidence=confidence)
    resolved = resolved_head(target, with_head(resolved, option), prompts, int(exit_layer))
    note = f"auto: {chosen}, stop below {confidence:g}, predicted {best.speedup:.2f}×"
    return Resolved(resolved, note, best.speedup, facts)
