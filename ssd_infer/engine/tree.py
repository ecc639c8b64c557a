"""Token trees: drafts of which several may follow the same token, of which verification accepts one path.

The pending token is node 0, the root; drafts are the nodes 1 to N, in an order in which parents come first. Siblings
are tried in the order of their numbers. A chain is the tree in which every node has one child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ssd_infer.engine.laws import Law

ABSENT = -1
"""As a parent: the node stands in no tree, its row drafts less than others."""


class Tree:
    """The shape of the drafts of all rows: one for all, or one for each."""

    __slots__ = (
        "ancestry",
        "depth",
        "depths",
        "levels",
        "nodes",
        "parent_lists",
        "parents",
    )

    def __init__(self, parents: Sequence[Sequence[int]], device: torch.device) -> None:
        """Read the parent of each node 1 to N, one list a row, or a single list for all rows.

        Raises ValueError where lists differ in length, or a parent does not come before its child.
        """
        self.parent_lists = [list(row) for row in parents]
        self.nodes = len(self.parent_lists[0])
        if any(len(row) != self.nodes for row in self.parent_lists):
            raise ValueError("the trees of all rows must have the same number of nodes, absent ones included")
        ancestry, depths = _followed(self.parent_lists, self.nodes)
        self.levels: list[list[int]] = depths.tolist()
        """The depth of nodes 0 to N of each row, on the host; an absent node has the root's."""
        self.depth = int(depths.max())
        """Tokens of the longest path below the root."""
        self.parents = torch.tensor(self.parent_lists, dtype=torch.long, device=device).view(-1, self.nodes)
        """Parent of nodes 1 to N `(1|B, N)`."""
        self.depths = torch.from_numpy(depths).to(device)
        """Tokens between the root and nodes 0 to N, `(1|B, N+1)`."""
        self.ancestry = torch.from_numpy(ancestry).to(device)
        """Whether node j is node i or lies on the way to it `(1|B, N+1, N+1)`."""

    def until(self, depth: int) -> Self:
        """Return the tree without nodes deeper than `depth`; nodes must come by depth, and all rows have one shape."""
        if depth >= self.depth:
            return self
        kept = sum(level <= depth for level in self.levels[0]) - 1
        return type(self)([self.parent_lists[0][:kept]], self.parents.device)

    def row(self, index: int) -> list[int]:
        """Return the parents of row `index`."""
        return self.parent_lists[index if len(self.parent_lists) > 1 else 0]

    def row_levels(self, index: int) -> list[int]:
        """Return the depths of nodes 0 to N of row `index`."""
        return self.levels[index if len(self.levels) > 1 else 0]


@dataclass(frozen=True, slots=True)
class TreeDraft:
    """How the tokens of a tree `(B, N)` were come by.

    `present` `(B, N)`: nodes that really are there (None: all that have a parent); below an absent node all are absent.
    `laws` `(B, M)`: the distributions that nodes were drawn from, and `drawn` `(1|B, N)` which of them, -1 for a
    token that was not drawn; None where none was. All drawn children of a node are of one law, drawn one after another
    from what it leaves without every earlier sibling.
    """

    tree: Tree
    present: Tensor | None = None
    laws: Law | None = None
    drawn: Tensor | None = None

    def parents(self) -> list[list[int]]:
        """Return the parent of each node of each row, -1 where the node is absent; waits for the device."""
        rows = self.tree.parent_lists
        if self.present is None:
            return rows
        there: list[list[bool]] = self.present.tolist()
        return [
            [parent if real else ABSENT for parent, real in zip(self.tree.row(at), line, strict=True)]
            for at, line in enumerate(there)
        ]

    def within(self, limits: Tensor) -> TreeDraft:
        """Return the draft without nodes deeper than `limits` `(B,)`."""
        kept = self.tree.depths[:, 1:] <= limits.unsqueeze(1)
        return replace(self, present=kept if self.present is None else kept & self.present)

    def children(self, current: Tensor) -> Tensor:
        """Return which nodes `(B, N)` are children of node `current` `(B,)`."""
        found = self.tree.parents == current.unsqueeze(1)
        return found if self.present is None else found & self.present


def _followed(parents: Sequence[Sequence[int]], nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ancestry `(R, N+1, N+1)` and depths `(R, N+1)` of every row's nodes."""
    ancestry = np.zeros((len(parents), nodes + 1, nodes + 1), dtype=np.bool_)
    depths = np.zeros((len(parents), nodes + 1), dtype=np.int64)
    ancestry[:, 0, 0] = True
    for row, listed in enumerate(parents):
        for node, parent in enumerate(listed, start=1):
            if parent >= node or parent < ABSENT:
                raise ValueError(
                    f"node {node} cannot follow node {parent}: parents come before their children"
                )
            if parent != ABSENT:
                ancestry[row, node] = ancestry[row, parent]
                depths[row, node] = depths[row, parent] + 1
            ancestry[row, node, node] = True
    return ancestry, depths
