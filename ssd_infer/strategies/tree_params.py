"""Rules of the parameters that drafts have which stop by confidence and may grow trees."""

from __future__ import annotations

from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_support import tree_problems
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import at_least
from ssd_infer.tuning.tree_shapes import shares_problems


def length_and_tree_problems(
    target: Target | None, gamma: int | str, tree: int | str, shares: list[float] | None
) -> list[Problem]:
    """Return what is wrong with the length of drafts and the shape of their trees."""
    found = at_least("gamma", gamma, 1) + at_least("tree", tree, 1)
    return found + tree_problems(target, tree) + shares_problems(shares)


def stop_problems(confidence: float | str) -> list[Problem]:
    """Return what is wrong with the confidence below which a row stops drafting: 0 <= confidence < 1, or auto."""
    if isinstance(confidence, str) or 0 <= confidence < 1:
        return []
    return [Problem("draft_params.confidence", "must be in [0, 1)", confidence, "0 turns it off")]
