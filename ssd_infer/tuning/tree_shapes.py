"""The shape of a tree of N nodes that is expected to have most tokens accepted (Sequoia, arXiv 2402.12374).

A node is accepted with the product, along its path, of the shares by rank: how often a draft's r-th choice is right.
That product falls from parent to child and from sibling to sibling, so the best N nodes are a tree, and none is better.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_shape import Shape, by_level
from ssd_infer.errors import Problem

USUAL = (0.5, 0.16, 0.08, 0.05, 0.03, 0.02, 0.015, 0.01)
"""Shares by rank where nothing is known of a draft."""


def shares_problems(shares: list[float] | None) -> list[Problem]:
    """Return a problem where `shares` are not chances that fall."""
    if shares is None:
        return []
    falling = all(first >= second for first, second in pairwise(shares))
    if shares and falling and shares[-1] > 0 and sum(shares) <= 1:
        return []
    rule = "must be chances above 0 that do not rise and add up to 1 at most"
    return [Problem("draft_params.shares", rule, shares, f"try {list(USUAL[:4])}")]


def shape_of(target: Target, nodes: int | str, shares: Sequence[float] | None, depth: int) -> Shape | None:
    """Return the best tree of `nodes` nodes, none deeper than `depth`; None for a chain of its own."""
    if isinstance(nodes, str) or nodes <= 1:
        return None
    known = USUAL if shares is None else tuple(shares)
    return Shape(by_level(best_parents(known[: target.vocab_size], nodes, depth)), target.device)


def best_parents(shares: Sequence[float], nodes: int, depth: int) -> list[int]:
    """Return the parents of the best tree, nodes in falling order of their chance.

    A tree that has all nodes it can have, `len(shares)` after each up to `depth`, may be smaller than `nodes`.
    """
    parents: list[int] = []
    depths = [0]
    heap = [(-shares[0], 0, 0)]
    while heap and len(parents) < nodes:
        chance, parent, rank = heapq.heappop(heap)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        node = len(parents)
        if rank + 1 < len(shares):
            heapq.heappush(heap, (chance * shares[rank + 1] / shares[rank], parent, rank + 1))
        if depths[node] < depth:
            heapq.heappush(heap, (chance * shares[0], node, 0))
    return parents
