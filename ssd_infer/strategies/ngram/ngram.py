"""Draft `ngram`: copy what followed the same tokens earlier in the row (prompt lookup); costs no forward at all.

With `tree` above 1, several earlier occurrences become branches of one token tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_support import chains_only, tree_problems
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, Resolved, Strategy, at_least
from ssd_infer.strategies.ngram import NGRAM
from ssd_infer.strategies.ngram.copy_trees import CopyTrees
from ssd_infer.tuning.tree_costs import cached_verify_curve, most_nodes


@dataclass(slots=True)
class NgramParams(DraftParams):
    """How many tokens to copy, and the longest and shortest match to look for."""

    gamma: int = 8
    """Most tokens one after another."""
    max_ngram: int = 4
    min_ngram: int = 1
    tree: int | Auto = field(default=1, metadata=UNSAID)
    """Nodes a round; 1 copies one occurrence, auto as many as are expected to pay at measured costs."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check gamma >= 1 and 1 <= min_ngram <= max_ngram."""
        found = at_least("gamma", self.gamma, 1) + at_least("tree", self.tree, 1)
        return found + tree_problems(target, self.tree) + length_problems(self.min_ngram, self.max_ngram)


class NgramIndex:
    """Where each n-gram of one row last occurred with something after it; extended as the row grows."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        """Index n-grams of `min_ngram` to `max_ngram` tokens."""
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def lookup(self, tokens: list[int], count: int) -> tuple[list[int], int]:
        """Return up to `count` tokens that followed the longest known suffix of `tokens`, and that suffix's length."""
        self._catch_up(tokens)
        for size in self._sizes:
            at = self._after.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if at is not None:
                return tokens[at : at + count], size
        return [], 0

    def _catch_up(self, tokens: list[int]) -> None:
        """Index every n-gram that has a follower by now."""
        for end in range(max(self._seen, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(tokens[end - size : end])] = end
        self._seen = max(self._seen, len(tokens))


class Ngram(Strategy):
    """Copy up to γ tokens from the most recent earlier occurrence of the longest matching suffix."""

    info = NGRAM
    Params = NgramParams
    by_batch = True
    evaluated: ClassVar[Mapping[str, Any]] = {"tree": "auto"}

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Keep one index a row."""
        super().__init__(session, params)
        self.params = cast(NgramParams, params)
        self.indices = [NgramIndex(self.params.min_ngram, self.params.max_ngram) for _ in session.rows]
        found = self.params
        self.trees = None
        if found.tree != 1:
            self.trees = CopyTrees(session, found.min_ngram, found.max_ngram, found.tree)

    def propose(self, limit: int) -> Proposal:
        """Copy for every row that has a match; rows without one draft nothing."""
        session, gamma = self.session, min(self.params.gamma, limit)
        if self.trees is not None:
            return self.trees.propose(gamma)
        copied = [
            index.lookup(row.tokens, gamma)[0] for index, row in zip(self.indices, session.rows, strict=True)
        ]
        return pack(session, copied)

    def observe(self, feedback: Feedback) -> None:
        """Learn which candidates were right."""
        if self.trees is not None:
            self.trees.learn(feedback.path or [])

    def keep_rows(self, kept: list[int]) -> None:
        """Forget the indices of ended rows."""
        self.indices = [self.indices[position] for position in kept]
        if self.trees is not None:
            self.trees.keep_rows(kept)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ, or the nodes of the largest tree."""
        found = cast(NgramParams, params)
        return found.gamma if found.tree == 1 else most_nodes(found.tree)

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Where `tree` is auto, measure once a model what verification costs by width; chains where no tree can be."""
        wanted = cast(NgramParams, params)
        if wanted.tree == "auto":
            if (reason := chains_only(target)) is not None:
                return Resolved(replace(wanted, tree=1), f"chains: {reason}")
            cached_verify_curve(target, max(map(len, prompts)), do_sample, len(prompts))
        return Resolved(params)


def length_problems(shortest: int, longest: int) -> list[Problem]:
    """Return what is wrong with the shortest and longest match to look for: 1 <= min_ngram <= max_ngram."""
    found = at_least("min_ngram", shortest, 1)
    if longest < shortest:
        found.append(Problem("draft_params.max_ngram", "must be >= min_ngram", longest, f"try {shortest}"))
    return found


def pack(session: Session, drafts: list[list[int]]) -> Proposal:
    """Turn token lists of different lengths into one deterministic proposal."""
    width = max(map(len, drafts))
    if width == 0:
        return session.empty()
    device = session.pending.device
    tokens = torch.tensor([draft + [0] * (width - len(draft)) for draft in drafts], device=device)
    ragged = any(len(draft) < width for draft in drafts)
    counts = torch.tensor([len(draft) for draft in drafts], device=device) if ragged else None
    return Proposal(tokens, counts)
