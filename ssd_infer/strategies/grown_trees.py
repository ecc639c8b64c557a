"""Trees that a draft grows level by level: one pass for all nodes of a depth, siblings without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.session import Proposal, Session
from ssd_infer.engine.tree import TreeDraft
from ssd_infer.engine.tree_shape import Level, Shape
from ssd_infer.engine.window import Window


class LevelDraft(Protocol):
    """What runs a draft on the nodes of one level."""

    session: Session
    head: DraftHead
    confidence: float
    resume_layer: int
    capture: tuple[int, ...]

    def beyond(self, own: Tensor, window: Window) -> Tensor:
        """Return the draft's states `(B, T, d)`, from the target's own after `resume_layer` layers at `window`."""


@dataclass(slots=True)
class GrownTree:
    """The tree of one round while it grows."""

    draft: LevelDraft
    shape: Shape
    tokens: list[Tensor] = field(default_factory=list)
    """Tokens `(B, T)` of each level, the pending one first."""
    present: list[Tensor] = field(default_factory=list)
    """Which nodes `(B, T)` of each level are there."""
    states: list[Tensor] = field(default_factory=list)
    """The target's own states `(B, T, d)` of each level, where the verify pass goes on from them."""
    laws: list[Law] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    """Which law each node was drawn from."""
    forwards: int = 0

    def propose(self) -> Proposal:
        """Grow all levels, fewer where no row is confident enough of any node."""
        session = self.draft.session
        self.tokens.append(session.pending.unsqueeze(1))
        self.present.append(torch.ones_like(self.tokens[0], dtype=torch.bool))
        grows, depth = self.present[0], 0
        while True:
            if depth and not self._any(grows):
                self.shape = self.shape.until(depth)
            level = self.shape.levels[depth]
            hidden = self._run(level, self.tokens[depth])
            if level.expanded == 0:
                return self._proposal()
            depth += 1
            scored = session.level_scores(self.draft.head.scores(hidden), self._paths(depth - 1))
            grows = self._draft(scored, self.shape.levels[depth], grows[:, : level.expanded])

    def _any(self, grows: Tensor) -> bool:
        """Tell whether any node may have children; only a confidence stop keeps all from it."""
        return self.draft.confidence <= 0 or bool(grows.any())

    def _run(self, level: Level, tokens: Tensor) -> Tensor:
        """Run the draft on the nodes of a level that have children, and what the target shares with it on all."""
        session, target, resume = self.draft.session, self.draft.session.target, self.draft.resume_layer
        width = level.width if resume else level.expanded
        if width == 0:
            return tokens
        tree, cache = self.shape.tree, session.cache
        window = session.tree_window(tree, level.first, width)
        own = target.embed_at(tokens[:, :width], window, cache)
        own = target.run(own, window, cache, 0, resume)
        if resume:
            self.states.append(own)
        if level.expanded == 0:
            return own
        self.forwards += 1
        if level.expanded < width:
            window = session.tree_window(tree, level.first, level.expanded)
        return self.draft.beyond(own[:, : level.expanded], window)

    def _draft(self, scored: Scored, level: Level, grows: Tensor) -> Tensor:
        """Choose the nodes of `level` by scores `(B, E, K)` after their parents; return which `(B, T)` grow.

        Children of a node that does not grow, by `grows` `(B, E)`, are absent. Nodes that the draft was not sure of are
        there, but do not grow.
        """
        sampler = self.draft.session.sampler
        owners = torch.tensor(level.owners, device=grows.device)
        if sampler.greedy:
            words = _best(scored, level)
            there = grows[:, owners]
        else:
            law = Law(sampler.probs(scored.logits), scored.ids)
            self.drawn += [owner + sum(part.probs.shape[1] for part in self.laws) for owner in level.owners]
            self.laws.append(law)
            words, possible = self._drawn(law, level)
            there = grows[:, owners] & possible
        self.tokens.append(words)
        self.present.append(there)
        if self.draft.confidence <= 0:
            return there
        probs = scored.logits.float().softmax(dim=-1) if sampler.greedy else self.laws[-1].probs
        return there & (probs.amax(dim=-1) >= self.draft.confidence)[:, owners]

    def _drawn(self, law: Law, level: Level) -> tuple[Tensor, Tensor]:
        """Draw the nodes `(B, T)` of a level; return where there was a token left to draw, too."""
        sampler, left = self.draft.session.sampler, law.probs.clone()
        words = torch.zeros((len(left), level.width), dtype=torch.long, device=left.device)
        possible = torch.zeros_like(words, dtype=torch.bool)
        for rank in range(max(level.ranks) + 1):
            owners, places = level.of_rank(rank)
            rest = left[:, owners]
            there = rest.sum(dim=-1) > 0
            columns = sampler.draw(torch.where(there.unsqueeze(-1), rest, 1.0))
            left[:, owners] = rest.scatter(-1, columns.unsqueeze(-1), 0.0)
            words[:, places] = _tokens_at(law, owners, columns)
            possible[:, places] = there
        return words, possible

    def _paths(self, depth: int) -> list[list[int]]:
        """Return the drafts before each node of level `depth` that has children, row after row, where rules hold."""
        session, tree = self.draft.session, self.shape.tree
        level = self.shape.levels[depth]
        if session.rules is None:
            return []
        rows = torch.cat(self.tokens[: depth + 1], dim=1).tolist()
        nodes = range(level.first, level.first + level.expanded)
        ways = [tree.ancestry[0, node].nonzero().flatten().tolist()[1:] for node in nodes]
        return [[row[at] for at in way] for row in rows for way in ways]

    def _proposal(self) -> Proposal:
        draft, greedy = self.draft, self.draft.session.sampler.greedy
        tokens = torch.cat(self.tokens[1:], dim=1)
        sure = greedy and draft.confidence <= 0
        return Proposal(
            tokens,
            hidden=torch.cat(self.states, dim=1) if self.states else None,
            resume_layer=draft.resume_layer,
            forwards=self.forwards,
            capture=draft.capture,
            tree=TreeDraft(
                self.shape.tree,
                None if sure else torch.cat(self.present[1:], dim=1),
                Law.joined(self.laws, torch.cat),
                torch.tensor([self.drawn], device=tokens.device) if self.laws else None,
            ),
        )


def _best(scored: Scored, level: Level) -> Tensor:
    """Return the most probable tokens `(B, T)` after the parents of a level's nodes, by rank."""
    most = min(max(level.ranks) + 1, scored.logits.shape[-1])
    columns = scored.logits.topk(most, dim=-1).indices
    # Where there are fewer tokens than siblings, the last of them come twice: the second is never reached.
    ranks = [min(rank, most - 1) for rank in level.ranks]
    return _tokens_at(scored, level.owners, columns[:, list(level.owners), ranks])


def _tokens_at(table: Scored | Law, owners: Sequence[int], columns: Tensor) -> Tensor:
    """Return the tokens in `columns` `(B, O)` of what `owners` are followed by."""
    if table.ids is None:
        return columns
    if table.ids.dim() == 1:
        return table.ids[columns]
    shape = (table.logits if isinstance(table, Scored) else table.probs).shape
    ids = table.ids.expand(shape)[:, list(owners)]
    return ids.gather(-1, columns.unsqueeze(-1)).squeeze(-1)
