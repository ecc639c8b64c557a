"""Copies of all rows as token trees, each row's grown from its own text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.tree import ABSENT, Tree, TreeDraft
from ssd_infer.strategies.ngram.copy_tree import CopyTree, Followers, Shares, grow
from ssd_infer.tuning.tree_costs import best_count, cached_verify_curve, most_nodes

if TYPE_CHECKING:
    from ssd_infer.strategies.ngram.ngram import NgramParams


class CopyTrees:
    """What every active row knows of its text, and its tree of this round."""

    def __init__(self, session: Session, params: NgramParams) -> None:
        """Start with nothing known; `auto` measures, once a model, what verification costs by width."""
        self._session, self._nodes = session, most_nodes(params.tree)
        self._followers = [Followers(params.min_ngram, params.max_ngram) for _ in session.rows]
        self._shares = [Shares() for _ in session.rows]
        self._grown: list[CopyTree] = []
        self._curve = None
        if params.tree == "auto":
            context = max(len(row.tokens) + row.limit // 2 for row in session.rows)
            self._curve = cached_verify_curve(
                session.target, context, not session.sampler.greedy, len(session.rows)
            )

    def propose(self, depth: int) -> Proposal:
        """Grow a tree a row, no deeper than `depth`, nor than its own budget: as it would alone."""
        session = self._session
        self._grown = [
            grow(followers, shares, row.tokens, self._nodes, min(depth, row.remaining - 1))
            for followers, shares, row in zip(self._followers, self._shares, session.rows, strict=True)
        ]
        width = max(len(tree.tokens) for tree in self._grown)
        if self._curve is not None:
            width = best_count([tree.worth for tree in self._grown], self._curve)
        if width == 0:
            self._grown = []
            return session.empty()
        tokens = [_padded(tree.tokens, width, 0) for tree in self._grown]
        parents = [_padded(tree.parents, width, ABSENT) for tree in self._grown]
        device = session.pending.device
        shape = Tree(parents, device)
        return Proposal(torch.tensor(tokens, device=device), tree=TreeDraft(shape))

    def observe(self, feedback: Feedback) -> None:
        """Learn from what became of the nodes of each row."""
        width = feedback.proposal.width
        for tree, shares, path in zip(self._grown, self._shares, feedback.path or [], strict=True):
            tree.until(width).learn(shares, path)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self._followers = [self._followers[position] for position in kept]
        self._shares = [self._shares[position] for position in kept]


def _padded(values: list[int], width: int, filler: int) -> list[int]:
    """Return the first `width` values, and `filler` where there are fewer."""
    return values[:width] + [filler] * (width - len(values))
