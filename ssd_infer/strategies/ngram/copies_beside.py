"""Copies as branches beside the tree that another draft has grown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ssd_infer.engine.session import Proposal
from ssd_infer.engine.tree import ABSENT, Tree, TreeDraft
from ssd_infer.engine.tree_shape import Shape
from ssd_infer.strategies.grown_trees import GrownTree, LevelDraft
from ssd_infer.strategies.ngram.copy_tree import CopyTree
from ssd_infer.strategies.ngram.copy_trees import CopyTrees, padded
from ssd_infer.tuning.tree_shapes import shape_of


class TreeGrower(LevelDraft, Protocol):
    """A draft that grows trees."""

    shape: Shape | None
    gamma: int


class Copying(Protocol):
    """How copies are looked for, and what shapes the tree beside them."""

    copy: int
    min_ngram: int
    max_ngram: int
    shares: list[float] | None


class CopiesBeside:
    """Draft a tree with copies as branches of it, of as many nodes together as the draft's own would have."""

    def __init__(self, draft: TreeGrower, copying: Copying) -> None:
        """Leave the copies half of the nodes at most, and `copying.copy`."""
        shape = draft.shape
        assert shape is not None
        self._draft, self._copy, nodes = draft, copying.copy, shape.tree.nodes
        session = draft.session
        self._trees = CopyTrees(session, copying.min_ngram, copying.max_ngram, nodes)
        self._room = min(copying.copy, nodes // 2)
        rest = shape_of(session.target, nodes - self._room, copying.shares, draft.gamma)
        self._rest = rest or Shape([0], session.target.device)
        self._grown: list[CopyTree] = []
        self._joined: list[Joined] | None = None

    @property
    def found(self) -> bool:
        """Whether any row has a copy."""
        return any(copy.tokens for copy in self._grown)

    def look(self, limit: int) -> list[int]:
        """Grow this round's copies; return the length of each row's match, 0 where there is none."""
        self._joined = None
        self._grown = self._trees.grow(self._room, min(self._copy, limit))
        return [copy.kinds[0][0] if copy.kinds else 0 for copy in self._grown]

    def copies_alone(self, limit: int) -> Proposal:
        """Let the target verify nothing but copies."""
        return self._trees.propose(min(self._copy, limit))

    def propose(self, limit: int) -> Proposal:
        """Grow a smaller tree, add the copies, and run the layers that verification leaves out on what was added."""
        draft, session, target = self._draft, self._draft.session, self._draft.session.target
        draft.head.follow(session.rows)
        proposal = GrownTree(draft, self._rest.until(min(draft.gamma, limit))).propose()
        assert proposal.tree is not None
        parents = proposal.tree.parents()
        drafted = [
            (line, parents[row if len(parents) > 1 else 0])
            for row, line in enumerate(proposal.tokens.tolist())
        ]
        self._joined = [join(*one, copy) for one, copy in zip(drafted, self._grown, strict=True)]
        first, joined = proposal.width + 1, add(proposal, self._joined)
        if joined is proposal or joined.tree is None or proposal.hidden is None:
            return joined
        window = session.tree_window(joined.tree.tree, first, joined.width + 1 - first)
        hidden = target.embed_at(joined.tokens[:, first - 1 :], window, session.cache)
        hidden = target.run(hidden, window, session.cache, 0, draft.resume_layer)
        return replace(joined, hidden=torch.cat([proposal.hidden, hidden], dim=1))

    def learn(self, paths: Sequence[Sequence[int]]) -> None:
        """Learn from the accepted nodes of each row which copies were right, where there were any."""
        if not self.found:
            return
        if self._joined is not None:
            paths = [one.path(path) for one, path in zip(self._joined, paths, strict=True)]
        self._trees.learn(paths)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self._trees.keep_rows(kept)


@dataclass(slots=True)
class Joined:
    """A row's drafted tree with copies in it."""

    tokens: list[int]
    """Those of added nodes."""
    parents: list[int]
    """Of added nodes."""
    places: list[int]
    """Which node stands for each node of the copy."""

    def path(self, accepted: Sequence[int]) -> list[int]:
        """Return which nodes of the copy stand for `accepted` nodes."""
        among = set(accepted)
        return [node for node, place in enumerate(self.places, start=1) if place in among]


def join(tokens: Sequence[int], parents: Sequence[int], copy: CopyTree) -> Joined:
    """Hang a copy into a drafted tree: where a draft is what is copied, its node stands for both.

    Added nodes have higher numbers than all drafted ones, and are tried after them. That keeps sampling exact although
    which copies are added depends on what was drawn: to try a token that was not drawn, and to leave it out when it is
    refused, is to draw from what the drawn siblings have left of the target's law.
    """
    known = {
        (parent, token): node
        for node, (token, parent) in reversed(list(enumerate(zip(tokens, parents, strict=True), start=1)))
        if parent != ABSENT
    }
    found = Joined([], [], [])
    for token, above in zip(copy.tokens, copy.parents, strict=True):
        parent = found.places[above - 1] if above else 0
        node = known.get((parent, token))
        if node is None:
            found.tokens.append(token)
            found.parents.append(parent)
            node = len(tokens) + len(found.tokens)
        found.places.append(node)
    return found


def add(proposal: Proposal, joined: Sequence[Joined]) -> Proposal:
    """Return `proposal`, a tree, with the added nodes; the target's own states of those are still missing."""
    draft = proposal.tree
    assert draft is not None
    width = max(len(one.tokens) for one in joined)
    if width == 0:
        return proposal
    device = proposal.tokens.device
    more = torch.tensor([padded(one.tokens, width, 0) for one in joined], device=device)
    parents = [[*draft.tree.row(row), *padded(one.parents, width, ABSENT)] for row, one in enumerate(joined)]
    present, drawn = draft.present, draft.drawn
    if present is not None:
        present = torch.cat([present, torch.ones_like(more, dtype=torch.bool)], dim=1)
    if drawn is not None:
        drawn = torch.cat([drawn, torch.full((1, width), ABSENT, device=device)], dim=1)
    tokens: Tensor = torch.cat([proposal.tokens, more], dim=1)
    return replace(proposal, tokens=tokens, tree=TreeDraft(Tree(parents, device), present, draft.laws, drawn))
