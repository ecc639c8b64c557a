"""Copies of all rows as token trees, each row's grown from its own text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ssd_infer.engine.session import Proposal, Session
from ssd_infer.engine.tree import ABSENT, Tree, TreeDraft
from ssd_infer.strategies.ngram.copy_tree import CopyTree, Followers, Shares, grow
from ssd_infer.tuning.tree_costs import best_count, cached_verify_curve, most_nodes


class CopyTrees:
    """What every active row knows of its text, and its tree of this round."""

    def __init__(self, session: Session, min_ngram: int, max_ngram: int, tree: int | str) -> None:
        """Start with nothing known; `auto` measures, once a model, what verification costs by width."""
        self._session, self.nodes = session, most_nodes(tree)
        self._followers = [Followers(min_ngram, max_ngram) for _ in session.rows]
        self._shares = [Shares() for _ in session.rows]
        self._grown: list[CopyTree] = []
        self._curve = None
        if tree == "auto":
            context = max(row.prompt_length for row in session.rows)
            self._curve = cached_verify_curve(
                session.target, context, not session.sampler.greedy, len(session.rows)
            )

    def grow(self, nodes: int, depth: int) -> list[CopyTree]:
        """Grow a tree a row, no deeper than `depth`, nor than its own budget: as it would alone."""
        self._grown = [
            grow(followers, shares, row.tokens, nodes, min(depth, row.remaining - 1))
            for followers, shares, row in zip(self._followers, self._shares, self._session.rows, strict=True)
        ]
        return self._grown

    def propose(self, depth: int) -> Proposal:
        """Let the target verify nothing but copies."""
        session, grown = self._session, self.grow(self.nodes, depth)
        width = max(len(tree.tokens) for tree in grown)
        if self._curve is not None:
            width = best_count([tree.worth for tree in grown], self._curve)
        self._grown = grown = [tree.until(width) for tree in grown]
        if width == 0:
            return session.empty()
        tokens = [padded(tree.tokens, width, 0) for tree in grown]
        shape = Tree([padded(tree.parents, width, ABSENT) for tree in grown], session.pending.device)
        return Proposal(torch.tensor(tokens, device=shape.parents.device), tree=TreeDraft(shape))

    def learn(self, paths: Sequence[Sequence[int]]) -> None:
        """Learn from the accepted nodes of each row's tree what candidates are worth."""
        for tree, shares, path in zip(self._grown, self._shares, paths, strict=True):
            tree.learn(shares, path)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self._followers = [self._followers[position] for position in kept]
        self._shares = [self._shares[position] for position in kept]


def padded(values: list[int], width: int, filler: int) -> list[int]:
    """Return the first `width` values, and `filler` where there are fewer."""
    return values[:width] + [filler] * (width - len(values))
