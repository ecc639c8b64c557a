"""What drafters that run one cheap forward per drafted token have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.session import Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_shape import Shape
from ssd_infer.engine.window import Window
from ssd_infer.strategies.base import DraftParams, Strategy
from ssd_infer.strategies.draft_head import extra_head_bytes, open_head
from ssd_infer.strategies.grown_trees import GrownTree


class Stepwise(Strategy):
    """Draft token by token, at most γ a round; a row stops after a token its draft was not confident about."""

    gamma: int
    confidence: float = 0.0
    resume_layer: int = 0
    """Layers of the target that `step` has run as the target itself would; verification goes on from there."""

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`."""
        super().__init__(session, params)
        self.capture: tuple[int, ...] = ()
        self.head: DraftHead = self.open_head(session, params)
        """What scores the states of `step`; follows the rows at the beginning of every round."""
        self.shape: Shape | None = None
        """The tree a round drafts; None drafts a chain."""

    def open_head(self, session: Session, params: DraftParams) -> DraftHead:
        """Return the head that `params` name, for what `step` returns."""
        return open_head(session, params, self.head_depth(session.target, params))

    @classmethod
    def head_depth(cls, target: Target, params: DraftParams) -> int:
        """Return the number of layers after which states reach the head."""
        del params
        return target.num_layers

    @classmethod
    def extra_bytes(cls, target: Target, params: DraftParams) -> int:
        """Return the bytes of a head of its own."""
        return extra_head_bytes(target, params)

    @abstractmethod
    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run the draft on one `token` `(B,)` a row, `offset` past its committed length; return `(B, 1, d)`."""

    def own_states(self, hidden: Tensor) -> Tensor:
        """Return the target's own states after `resume_layer` layers, of the step that has just returned `hidden`."""
        return hidden

    def beyond(self, own: Tensor, window: Window) -> Tensor:
        """Return the draft's states `(B, T, d)`, from the target's own after `resume_layer` layers at `window`.

        What `step` does with one token, for those drafts that grow trees.
        """
        del window
        return own

    def propose(self, limit: int) -> Proposal:
        """Draft min(γ, limit) tokens, fewer for rows whose confidence falls below the threshold.

        With a `shape`, γ bounds its depth.
        """
        if self.shape is not None:
            self.head.follow(self.session.rows)
            return GrownTree(self, self.shape.until(min(self.gamma, limit))).propose()
        return self.extend(min(self.gamma, limit), self.session.pending)

    def extend(self, gamma: int, token: Tensor) -> Proposal:
        """Draft `gamma` tokens one by one, starting from the pending `token` `(B,)`."""
        session, head = self.session, self.head
        head.follow(session.rows)
        drafts: list[Tensor] = []
        states, laws = [], []
        counts = alive = None
        for step in range(gamma):
            hidden = self.step(token, step)
            scored = session.draft_scores(head.scores(hidden).last(), drafts)
            token, law = self._pick(scored)
            drafts.append(token)
            if self.resume_layer:
                states.append(self.own_states(hidden))
            if law is not None:
                laws.append(law)
            if self.confidence > 0:
                top = self._top(scored, law)
                counts, alive = _count(top, counts, alive)
                alive &= top >= self.confidence
                if not bool(alive.any()):
                    break
        return self._proposal(drafts, counts, laws, states)

    def _proposal(
        self,
        drafts: list[Tensor],
        counts: Tensor | None,
        laws: list[Law],
        states: list[Tensor],
        unverified: Tensor | None = None,
    ) -> Proposal:
        """Put the tokens `(B,)` of each step, with what belongs to them, side by side."""
        return Proposal(
            tokens=torch.stack(drafts, dim=1),
            counts=counts,
            law=Law.joined(laws, torch.stack),
            hidden=torch.cat(states, dim=1) if states else None,
            resume_layer=self.resume_layer,
            forwards=len(drafts),
            capture=self.capture,
            unverified=unverified,
        )

    def _pick(self, scored: Scored) -> tuple[Tensor, Law | None]:
        """Choose one token a row by scores `(B, K)`, with the law it was drawn from when sampling."""
        return self.session.sampler.choose(scored)

    def _top(self, scored: Scored, law: Law | None) -> Tensor:
        """Return the highest probability `(B,)` of what was just drafted from, within what the head looked at."""
        probs = scored.logits.float().softmax(dim=-1) if law is None else law.probs
        return probs.amax(dim=-1)


def _count(top: Tensor, counts: Tensor | None, alive: Tensor | None) -> tuple[Tensor, Tensor]:
    """Count this token for the rows that are still drafting; all are at the first token."""
    if counts is None or alive is None:
        return torch.ones_like(top, dtype=torch.long), torch.ones_like(top, dtype=torch.bool)
    return counts + alive, alive
