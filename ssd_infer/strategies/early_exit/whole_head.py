"""Draft heads in the file that travels with a checkpoint: the whole head only, which needs no calibration.

`bundle` puts these functions in the place of those of their names in `draft_head` and `exit_heads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ssd_infer.engine.heads.head import DraftHead, FullHead
from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.early_exit.exit_calibration import ExitPrediction, ExitProfile
from ssd_infer.strategies.head_params import HeadParams

FULL = None


def open_head(session: Session, params: DraftParams, depth: int) -> DraftHead:
    """Return the target's own head."""
    del params, depth
    return FullHead(session.target)


def extra_head_bytes(target: Target, params: DraftParams) -> int:
    """Return 0: the whole head is the model's own."""
    del target, params
    return 0


def resolved_head(target: Target, params: Any, prompts: Sequence[list[int]], depth: int) -> Any:
    """Return `params` with the whole head; raises ConfigError where they name another."""
    del target, prompts, depth
    if params.head not in ("auto", "full"):
        rule = "must be full here: this file drafts with the whole head"
        raise ConfigError(
            [Problem("draft_params.head", rule, params.head, "use head=full, or ssd_infer.generate")]
        )
    return replace(params, head="full")


def with_head(params: HeadParams, option: None) -> HeadParams:
    """Return `params` as they are."""
    del option
    return params


def best_of_heads(
    target: Target, known: ExitProfile, params: HeadParams, prompts: Sequence[list[int]], *narrowed: Any
) -> tuple[ExitPrediction, None, dict[str, Any]]:
    """Return the fastest prediction with the whole head, among what is `narrowed` down to."""
    del target, params, prompts
    return known.best(*narrowed), FULL, {}
