"""Several earlier occurrences as branches of one tree: what followed the same tokens before, and how often again.

A tree is grown best first. The candidates after a node are what followed the longest known suffix of the text and the
path to that node, then what else followed it, or shorter suffixes. A node is worth the product of shares along its
path: how many candidates from a match of that length, at that rank, were right in this row so far.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR = (0.25, 0.5, 0.65, 0.75)
"""Share of first candidates that are right, by length of the match, before a row has shown its own."""
FALL = 0.2
"""What a later candidate is worth of the one before it."""
WEIGHT = 4.0
"""Tokens that a prior counts for."""
MOST = 4
"""Candidates after one node."""


class Followers:
    """What followed each n-gram of one row, the most recent first; extended as the row grows."""

    def __init__(self, min_ngram: int, max_ngram: int, keep: int = MOST) -> None:
        """Index n-grams of `min_ngram` to `max_ngram` tokens, `keep` distinct followers of each."""
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._keep = keep
        self._after: dict[tuple[int, ...], dict[int, None]] = {}
        self._seen = 0

    def candidates(self, tokens: Sequence[int], path: Sequence[int]) -> list[tuple[int, int]]:
        """Return distinct tokens that followed suffixes of `tokens` and `path` in `tokens`, with the match's length.

        Longer matches come first, then more recent ones.
        """
        self._catch_up(tokens)
        longest = self._sizes[0]
        tail = (*tokens[-longest:], *path)[-longest:]
        found: dict[int, int] = {}
        for size in self._sizes:
            if size > len(tail):
                continue
            for token in reversed(self._after.get(tail[len(tail) - size :], {})):
                found.setdefault(token, size)
            if len(found) >= self._keep:
                break
        return list(found.items())[: self._keep]

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that has a follower by now."""
        for end in range(max(self._seen, 1), len(tokens)):
            follower = tokens[end]
            for size in self._sizes:
                if size <= end:
                    known = self._after.setdefault(tuple(tokens[end - size : end]), {})
                    known.pop(follower, None)
                    known[follower] = None
                    if len(known) > self._keep:
                        del known[next(iter(known))]
        self._seen = max(self._seen, len(tokens))


@dataclass(slots=True)
class Shares:
    """How often candidates were right, by length of the match and rank; one a row."""

    hits: dict[tuple[int, int], float] = field(default_factory=dict)
    trials: dict[tuple[int, int], float] = field(default_factory=dict)

    def of(self, size: int, rank: int) -> float:
        """Return the share of candidates of this kind that were right."""
        prior = PRIOR[min(size, len(PRIOR)) - 1] * FALL**rank
        key = size, rank
        return (WEIGHT * prior + self.hits.get(key, 0.0)) / (WEIGHT + self.trials.get(key, 0.0))

    def learn(self, size: int, rank: int, right: bool) -> None:
        """Count one candidate whose place in the text is known by now."""
        key = size, rank
        self.trials[key] = self.trials.get(key, 0.0) + 1.0
        self.hits[key] = self.hits.get(key, 0.0) + right


@dataclass(slots=True)
class CopyTree:
    """The tree of one row: nodes in the order they were added, numbered from 1."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    kinds: list[tuple[int, int]] = field(default_factory=list)
    """Length of the match and rank of each node."""
    worth: list[float] = field(default_factory=list)
    """Chance of each node to be accepted; falls from node to node."""

    def until(self, nodes: int) -> CopyTree:
        """Return the first `nodes` nodes, which form a tree too."""
        return CopyTree(self.tokens[:nodes], self.parents[:nodes], self.kinds[:nodes], self.worth[:nodes])

    def learn(self, shares: Shares, path: Sequence[int]) -> None:
        """Tell `shares` which nodes were right: those of the accepted `path`, and no other child on the way."""
        accepted, known = set(path), {0, *path}
        for node, (parent, kind) in enumerate(zip(self.parents, self.kinds, strict=True), start=1):
            if parent in known:
                shares.learn(*kind, node in accepted)


def grow(followers: Followers, shares: Shares, tokens: Sequence[int], nodes: int, depth: int) -> CopyTree:
    """Return a tree of at most `nodes` nodes, none deeper than `depth`, for a row that has come to `tokens`."""
    tree = CopyTree()
    paths: list[tuple[int, ...]] = [()]
    heap: list[tuple[float, int, int, int, tuple[int, int]]] = []

    def offer(parent: int, worth: float) -> None:
        if len(paths[parent]) >= depth:
            return
        for rank, (token, size) in enumerate(followers.candidates(tokens, paths[parent])):
            # Ties go to the older parent, then to the better rank: whatever else is in the heap decides nothing.
            heapq.heappush(heap, (-worth * shares.of(size, rank), parent, rank, token, (size, rank)))

    offer(0, 1.0)
    while heap and len(tree.tokens) < nodes:
        worth, parent, _, token, kind = heapq.heappop(heap)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.kinds.append(kind)
        tree.worth.append(-worth)
        paths.append((*paths[parent], token))
        offer(len(tree.tokens), -worth)
    return tree
