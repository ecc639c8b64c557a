"""Drafters of trees, for tests of the engine: one that knows the answer, one that draws from a law of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.drafter import Drafter, DraftParams
from ssd_infer.engine.laws import Law
from ssd_infer.engine.loop import Plan, decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree import ABSENT, Tree, TreeDraft


@dataclass(slots=True)
class Planned:
    """Decode with a drafter that is made for the session."""

    make: Callable[[Session], Drafter]
    nodes: int
    seen: list[Session]

    def plan(self, session: Session, params: DraftParams) -> Plan:
        """Return the drafter, and remember the session."""
        del params
        self.seen.append(session)
        return Plan(self.make(session))

    def max_draft(self, params: DraftParams) -> int:
        """Return the nodes of a tree."""
        del params
        return self.nodes


def decoded(
    target: Target,
    prompts: list[list[int]],
    make: Callable[[Session], Drafter],
    nodes: int,
    new: int,
    *,
    eos: frozenset[int] = frozenset(),
    seed: int = 0,
    rules: Any = None,
    **sampling: Any,
) -> tuple[list[list[int]], Stats, Session]:
    """Decode with a drafter of trees; return tokens, statistics and the session as it ended."""
    planned = Planned(make, nodes, [])
    sampler = Sampler(SamplingParams(**sampling), target.device, seed)
    stop = StopRule(eos)
    found, stats = decode(target, prompts, planned, DraftParams(), new, sampler, stop, None, rules)
    return found, stats, planned.seen[0]


class KnowingTrees(Drafter):
    """Draft random trees in which the right continuation often is a path, of other slots than its own."""

    def __init__(
        self, session: Session, texts: list[list[int]], nodes: int, *, shared: bool, seed: int = 0
    ) -> None:
        """Know the `texts` that follow the prompts; `shared` draws one shape for all rows."""
        super().__init__(session, DraftParams())
        self.texts, self.nodes, self.shared = texts, nodes, shared
        self.random = random.Random(seed)
        self.feedback: list[Feedback] = []

    def propose(self, limit: int) -> Proposal:
        """Draw a tree a row, no deeper than `limit`, and plant what follows."""
        rows = self.session.rows
        device = self.session.pending.device
        shapes = [self._shape(limit) for _ in rows]
        shapes = [shapes[0]] * len(rows) if self.shared else shapes
        words = [
            self._words(self.texts[row.index][row.emitted :], shape)
            for row, shape in zip(rows, shapes, strict=True)
        ]
        tree = Tree(shapes[:1] if self.shared else shapes, device)
        return Proposal(torch.tensor(words, device=device), tree=TreeDraft(tree), forwards=0)

    def observe(self, feedback: Feedback) -> None:
        """Remember what verification said."""
        self.feedback.append(feedback)

    def _shape(self, limit: int) -> list[int]:
        parents, levels = [], [0]
        for node in range(1, self.nodes + 1):
            if not self.shared and self.random.random() < 0.1:
                parents.append(ABSENT)
                levels.append(limit)
                continue
            parent = self.random.choice(
                [at for at in range(max(0, node - 4), node) if levels[at] < limit] or [0]
            )
            parents.append(parent)
            levels.append(levels[parent] + 1)
        return parents

    def _words(self, text: list[int], parents: list[int]) -> list[int]:
        vocabulary = self.session.target.vocab_size
        words = [self.random.randrange(vocabulary) for _ in parents]
        current = 0
        for token in text:
            children = [node for node, parent in enumerate(parents, start=1) if parent == current]
            if not children or self.random.random() < 0.1:
                break
            current = self.random.choice(children)
            words[current - 1] = token
        return words


SHAPE = [0, 0, 0, 1, 1, 2, 4, 4]
"""Three children of the root, of which two go on."""


class DrawnTrees(Drafter):
    """Draw siblings one after another from a law that the text before them decides, some of them copied instead."""

    def __init__(
        self, session: Session, *, copies: bool = False, again: bool = False, counted: bool = False
    ) -> None:
        """`copies`: the first child of a node is not drawn; `again`: siblings are drawn with replacement (wrong).

        `counted`: a row's own text decides how many children a node has.
        """
        super().__init__(session, DraftParams())
        self.copies, self.again, self.counted = copies, again, counted
        generator = torch.Generator().manual_seed(3)
        size = session.target.vocab_size
        self._table = torch.randn((size, size), generator=generator).mul(1.2).softmax(dim=-1)
        self.tree = Tree([SHAPE], session.pending.device)

    def propose(self, limit: int) -> Proposal:
        """Draw every node after its parent."""
        session, tree = self.session, self.tree.until(limit)
        parents = tree.parent_lists[0]
        words: list[Tensor] = []
        laws: list[Tensor] = []
        drawn: list[int] = []
        left: dict[int, tuple[int, Tensor]] = {}
        present = []
        for node, parent in enumerate(parents, start=1):
            before = session.pending if parent == 0 else words[parent - 1]
            if parent not in left:
                law = self._table[before]
                laws.append(law)
                left[parent] = (len(laws) - 1, law)
            index, law = left[parent]
            copied = self.copies and parent not in parents[: node - 1]
            word = before.add(1).remainder(law.shape[1]) if copied else session.sampler.draw(law)
            words.append(word)
            drawn.append(ABSENT if copied else index)
            if not self.again:
                left[parent] = (index, law.scatter(1, word.unsqueeze(1), 0.0))
            there = torch.ones_like(word, dtype=torch.bool)
            if self.counted and parent == 0:
                there = node <= 1 + session.pending.remainder(3)
            if self.counted and parent:
                there = present[parent - 1]
            present.append(there)
        draft = TreeDraft(
            tree,
            torch.stack(present, dim=1) if self.counted else None,
            Law(torch.stack(laws, dim=1)),
            torch.tensor([drawn]),
        )
        return Proposal(torch.stack(words, dim=1), tree=draft, forwards=0)
