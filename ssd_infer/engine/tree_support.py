"""Whether a model can verify token trees: looked at once a model, in passes of a few tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.examine import tolerance
from ssd_infer.engine.model_view import evaluating, once
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree import Tree
from ssd_infer.engine.tree_window import TreeWindow
from ssd_infer.engine.window import Window
from ssd_infer.errors import Problem, one_line

_BEFORE = 5
"""Tokens before the tree."""
_PARENTS = [0, 0, 0, 1, 2, 2, 5]
"""A tree whose numbers and depths differ everywhere."""


def tree_problems(target: Target | None, nodes: int | str) -> list[Problem]:
    """Return a problem where trees of more than one node are asked for, and `target` can only verify chains."""
    if target is None or isinstance(nodes, str) or nodes <= 1:
        return []
    reason = chains_only(target)
    if reason is None:
        return []
    return [Problem("draft_params.tree", f"must be 1 for this model: {reason}", nodes, "1 drafts chains")]


@once
@torch.inference_mode()
def chains_only(target: Target) -> str | None:
    """Return None when trees are verified as exactly as chains are, otherwise the reason in one sentence.

    A pass over a small tree is compared with passes over each of its paths.
    """
    if (reason := _by_order(target)) is not None:
        return reason
    with evaluating(target.model):
        try:
            apart = _from_its_paths(target)
        except Exception as error:  # noqa: BLE001  the sentence says what was raised
            return f"a pass over a token tree fails ({one_line(error)})"
    if not apart <= tolerance(target):
        return (
            f"a pass over a token tree differs from passes over its paths by {apart:.1e} of the largest logit"
        )
    return None


def _by_order(target: Target) -> str | None:
    """Say what makes a model read tokens in the order they are given in."""
    if target.recurrent:
        return "its layers remember by recurrence, in the order tokens are given in"
    if getattr(target.config, "attn_temperature_tuning", False):
        return "it scales queries by the number of slots before them, which in a tree is not their position"
    return None


def _from_its_paths(target: Target) -> float:
    """Return how far the logits of a tree's nodes are from those of its paths, as a share of the largest."""
    tree = Tree([_PARENTS], target.device)
    count = tree.nodes + 1
    words = torch.arange(3, 3 + _BEFORE + count, device=target.device) % target.vocab_size
    cache, geometry = target.new_cache(1, _BEFORE + count), target.geometry(_BEFORE + count)
    before = words[:_BEFORE].unsqueeze(0)
    nodes = words[_BEFORE:].unsqueeze(0)
    _logits(target, before, Window(geometry, [0], _BEFORE), cache)
    found = _logits(target, nodes, TreeWindow(geometry, [_BEFORE], tree, 0, count), cache)
    most = worst = 0.0
    for node in range(count):
        path = tree.ancestry[0, node].nonzero().flatten()
        window = Window(geometry, [_BEFORE], len(path))
        alone = _logits(target, nodes[:, path], window, cache)[0, -1]
        most = max(most, float(alone.abs().max()))
        worst = max(worst, float((alone - found[0, node]).abs().max()))
    return worst / (most + 1e-6)


def _logits(target: Target, ids: Tensor, window: Window, cache: Any) -> Tensor:
    """Return the logits `(1, T, V)` of one pass, in float32."""
    hidden = target.run(target.embed_at(ids, window, cache), window, cache)
    return target.logits(hidden).float()
