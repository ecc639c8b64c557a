"""Draft `early_exit`: the first E layers and the shared head draft; layers E..L verify from the stored exit states.

LayerSkip (arXiv 2404.16710) section 4.3. Keys and values of the first E layers are the target's own, so one cache
serves both, and the verify pass runs those layers only for the last drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ssd_infer.drafts.base import Auto, Drafter, DraftParams, Resolved, at_least
from ssd_infer.engine.session import Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem


@dataclass(slots=True)
class EarlyExitParams(DraftParams):
    """Where to exit, how many tokens to draft, and the confidence below which a row stops drafting."""

    exit_layer: int | Auto = "auto"
    gamma: int | Auto = "auto"
    confidence: float = 0.0

    def problems(self, target: Target) -> list[Problem]:
        """Check 1 <= exit_layer < L, gamma >= 1 and 0 <= confidence < 1."""
        found = at_least("exit_layer", self.exit_layer, 1) + at_least("gamma", self.gamma, 1)
        if isinstance(self.exit_layer, int) and self.exit_layer >= target.num_layers:
            rule = f"must be < {target.num_layers}, the layers of this model"
            found.append(
                Problem(
                    "draft_params.exit_layer", rule, self.exit_layer, f"try {max(1, target.num_layers // 4)}"
                )
            )
        if not 0 <= self.confidence < 1:
            found.append(
                Problem("draft_params.confidence", "must be in [0, 1)", self.confidence, "0 turns it off")
            )
        return found


class EarlyExit(Drafter):
    """Draft with the first E layers, at most γ tokens a round."""

    name = "early_exit"
    family = "skip_layer"
    Params = EarlyExitParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; `params` must have no `auto` left."""
        super().__init__(session, params)
        settled = cast(EarlyExitParams, params)
        self.exit_layer = int(settled.exit_layer)
        self.gamma = int(settled.gamma)
        self.confidence = settled.confidence

    def propose(self, limit: int) -> Proposal:
        """Draft min(γ, limit) tokens, fewer for rows whose confidence falls below the threshold."""
        return self.extend(min(self.gamma, limit), self.session.pending)

    def extend(self, gamma: int, token: Tensor) -> Proposal:
        """Draft `gamma` tokens one by one, starting from the pending `token` `(B,)`."""
        session, target = self.session, self.session.target
        drafts, states, probs = [], [], []
        counts = alive = None
        for step in range(gamma):
            hidden = target.run(
                target.embed(token.unsqueeze(1)), session.window(1, step), session.cache, 0, self.exit_layer
            )
            logits = target.logits(hidden[:, 0])
            token, q = self._pick(logits)
            drafts.append(token)
            states.append(hidden)
            if q is not None:
                probs.append(q)
            if self.confidence > 0:
                counts, alive = self._confident(logits, q, counts, alive)
                if not bool(alive.any()):
                    break
        return Proposal(
            tokens=torch.stack(drafts, dim=1),
            counts=counts,
            probs=torch.stack(probs, dim=1) if probs else None,
            hidden=torch.cat(states, dim=1),
            resume_layer=self.exit_layer,
            forwards=len(drafts),
        )

    def _pick(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose one token a row from `(B, V)` logits, with the distribution it was drawn from when sampling."""
        sampler = self.session.sampler
        if sampler.greedy:
            return logits.argmax(dim=-1), None
        q = sampler.probs(logits)
        return sampler.draw(q), q

    def _confident(
        self, logits: Tensor, q: Tensor | None, counts: Tensor | None, alive: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Count this token for rows still drafting, then stop the rows whose top probability is below the threshold."""
        top = (logits.float().softmax(dim=-1) if q is None else q).amax(dim=-1)
        if counts is None or alive is None:
            counts, alive = torch.ones_like(top, dtype=torch.long), torch.ones_like(top, dtype=torch.bool)
        else:
            counts = counts + alive
        return counts, alive & (top >= self.confidence)

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need at least two layers: one to exit after, one to verify with."""
        return (
            None
            if target.num_layers >= 2
            else "the model has a single layer, so there is nothing to exit from"
        )

    @classmethod
    def search_space(cls, target: Target) -> dict[str, Sequence[Any]]:
        """Return exits up to half the depth, and γ from 1 to 12."""
        return {"exit_layer": range(1, target.num_layers // 2 + 1), "gamma": range(1, 13)}

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ."""
        return int(cast(EarlyExitParams, params).gamma)

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Choose E and γ by predicted speedup on a calibration of `prompts`; plain decoding when none exceeds 1."""
        from ssd_infer.engine.calibrate import settle_early_exit

        return settle_early_exit(target, cast(EarlyExitParams, params), prompts, do_sample)
