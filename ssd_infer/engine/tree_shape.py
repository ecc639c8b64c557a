"""Shapes of drafted trees that all rows share, in an order that a draft can grow them in: level after level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssd_infer.engine.tree import Tree


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth: those that have children come first, siblings stand in the order they are tried in."""

    first: int
    """The number of its first node."""
    width: int
    expanded: int
    """How many of its nodes have children."""
    owners: tuple[int, ...] = ()
    """Of each node, which of the nodes of the level before it follows."""
    ranks: tuple[int, ...] = ()
    """Of each node, how many siblings come before it."""

    def of_rank(self, rank: int) -> tuple[list[int], list[int]]:
        """Return which nodes of the level before have a child of this rank, and where these children stand."""
        pairs = sorted(
            (owner, at)
            for at, (owner, one) in enumerate(zip(self.owners, self.ranks, strict=True))
            if one == rank
        )
        return [owner for owner, _ in pairs], [at for _, at in pairs]


class Shape:
    """A tree of one shape for all rows, cut into levels."""

    def __init__(self, parents: Sequence[int], device: torch.device) -> None:
        """Read the parents of nodes 1 to N, which come level after level as `by_level` orders them."""
        self.tree = Tree([parents], device)
        self.levels = _levels(list(parents), self.tree.levels[0])
        self._cut: dict[int, Shape] = {}

    def until(self, depth: int) -> Shape:
        """Return the shape without nodes deeper than `depth`, numbered as they are here."""
        if depth >= self.tree.depth:
            return self
        found = self._cut.get(depth)
        if found is None:
            cut = self.tree.until(depth)
            found = self._cut[depth] = Shape(cut.parent_lists[0], cut.parents.device)
        return found


def by_level(parents: Sequence[int]) -> list[int]:
    """Return the parents of the same tree with its nodes level after level, nodes with children first in theirs.

    A node that has children must not stand behind a sibling that has none.
    """
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    inner = set(parents)
    number = {0: 0}
    ordered: list[int] = []
    for depth in range(1, max(depths) + 1):
        level = [node for node in range(1, len(depths)) if depths[node] == depth]
        level.sort(key=lambda node: (node not in inner, number[parents[node - 1]], node))
        for node in level:
            number[node] = len(number)
            ordered.append(number[parents[node - 1]])
    return ordered


def _levels(parents: list[int], depths: Sequence[int]) -> list[Level]:
    inner = set(parents)
    found = [Level(0, 1, int(0 in inner))]
    for depth in range(1, max(depths) + 1):
        nodes = [node for node in range(1, len(depths)) if depths[node] == depth]
        before = found[-1].first
        owners = tuple(parents[node - 1] - before for node in nodes)
        ranks = tuple(owners[:at].count(owner) for at, owner in enumerate(owners))
        if nodes != list(range(nodes[0], nodes[0] + len(nodes))):
            raise ValueError("the nodes of a shape must come level after level")
        expanded = sum(node in inner for node in nodes)
        if any(node in inner for node in nodes[expanded:]):
            raise ValueError("nodes with children must come first in their level")
        found.append(Level(nodes[0], len(nodes), expanded, owners, ranks))
    return found
