"""How fewer experts draft: routers are shallow copies with a smaller top-k, and every weight is shared.

Where experts are offloaded, the draft goes to experts in memory only, so it never waits, and names those that
verification will need, so that they are read while it drafts. Verification writes the window's keys again.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.offload.layout import ROUTED, MoeLayer, moe_layers, unsupported_reason
from ssd_infer.offload.offload import resident_of
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.reduced_experts.expert_params import ReducedExpertsParams
from ssd_infer.strategies.reduced_experts.expert_views import reduced_view
from ssd_infer.strategies.reduced_experts.record import Pace, Round, Rounds
from ssd_infer.strategies.reduced_experts.skipped import Skipped
from ssd_infer.strategies.stepwise import Stepwise


class ExpertDraft(Stepwise):
    """Draft with `k_draft` experts a token, at most γ tokens a round; its parameters have no `auto` left."""

    Params = ReducedExpertsParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Build the view; `params` must have no `auto` left."""
        super().__init__(session, params)
        self.params = resolved = cast(ReducedExpertsParams, params)
        self.gamma = int(resolved.gamma)
        self.pace = Pace(self.gamma, resolved.follow is True)
        self.confidence = float(resolved.confidence)
        target = session.target
        self.resident = resident_of(target.layers)
        self._reads_ahead = self.resident is not None and bool(resolved.prefetch)
        held = self.resident if resolved.at_hand is True else None
        listener = self._name if self._reads_ahead else None
        self.view = reduced_view(target, int(resolved.k_draft), resolved.renorm, held, listener)
        self.resume_layer = min(moe_layers(target.layers)[0].index, target.num_layers - 1)
        self.rounds: Rounds | None = None
        """Set by calibration: every round is noted here."""
        self.skipped = Skipped()
        self._own: Tensor
        self._logits: list[Tensor] = []
        self._top_probs: list[Tensor] = []

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run all layers on one `token` `(B,)` a row; return `(B, 1, d)`."""
        session, target, resume = self.session, self.session.target, self.resume_layer
        window = session.window(1, offset)
        hidden = target.embed_at(token.unsqueeze(1), window, session.cache)
        self._own = target.run(hidden, window, session.cache, 0, resume, self.view) if resume else hidden
        return target.run(self._own, window, session.cache, resume, layers=self.view)

    def own_states(self, hidden: Tensor) -> Tensor:
        """Return the states before the first layer with experts."""
        return self._own

    def propose(self, limit: int) -> Proposal:
        """Draft, in mode adaptive as far as the window may go."""
        if self.params.mode == "adaptive":
            return self._adaptive(min(self.params.max_window, limit))
        if self.rounds is not None:
            self._top_probs = []
        return self.extend(min(self.pace.now, limit), self.session.pending)

    def observe(self, feedback: Feedback) -> None:
        """Stop reading ahead, set the pace, and count what was skipped or, in calibration, what was right."""
        self.pace.learn(feedback.counts, feedback.accepted)
        if self.resident is not None:
            self.resident.forget_names()
        if feedback.proposal.unverified is not None:
            room = [row.remaining for row in self.session.rows]
            self.skipped.learn(feedback, torch.stack(self._logits, dim=1), self.session.sampler, room)
        if self.rounds is not None:
            table = torch.stack(self._top_probs, dim=1).tolist()
            for confidence, count, accepted in zip(table, feedback.counts, feedback.accepted, strict=True):
                self.rounds.rounds.append(Round(tuple(confidence[:count]), accepted))

    def report(self) -> dict[str, Any]:
        """Return what was skipped, and what the resident set did."""
        found: dict[str, Any] = {"mode": self.params.mode}
        if self.params.mode == "adaptive":
            found |= self.skipped.report()
        if self.resident is not None:
            found["experts"] = self.resident.counters.report(0, self.resident.store.expert_bytes)
        return found

    def _pick(self, scored: Scored) -> tuple[Tensor, Law | None]:
        """Choose a token as any stepwise draft does, keeping what calibration or the lossy figures need."""
        token, law = super()._pick(scored)
        if self.rounds is not None:
            self._top_probs.append(self._top(scored, law))
        if self.params.mode == "adaptive":
            self._logits.append(scored.logits)
        return token, law

    def _top(self, scored: Scored, law: Law | None) -> Tensor:
        """Return how sure `(B,)` a draft is: its best token's lead 1 - p₂/p₁, or the top probability when sampling.

        Fewer experts change logits a little everywhere, so what they turn over are ties, however probable both sides.
        """
        if law is not None:
            return super()._top(scored, law)
        if scored.logits.shape[-1] == 1:  # a head of one token has no rival to lead
            return scored.logits.new_ones(len(scored.logits), dtype=torch.float32)
        best = scored.logits.float().topk(2, dim=-1).values
        return -torch.expm1(best[:, 1] - best[:, 0])

    def _name(self, layer: MoeLayer, index: Tensor) -> None:
        """Tell the resident set which experts `(N, k)` verification will need."""
        assert self.resident is not None
        self.resident.name(layer.index, set(index.reshape(-1).tolist()))

    def _adaptive(self, most: int) -> Proposal:
        """Draft until every row has γ tokens to compare, was not sure enough, or reached the window's end."""
        session, threshold = self.session, float(self.params.tau_accept)
        token = session.pending
        rows, device = len(session.rows), token.device
        alive = torch.ones(rows, dtype=torch.bool, device=device)
        counts = torch.zeros(rows, dtype=torch.long, device=device)
        pending = torch.zeros_like(counts)
        drafts: list[Tensor] = []
        laws, unverified, states = [], [], []
        self.head.follow(session.rows)
        self._logits = []
        for offset in range(most):
            hidden = self.step(token, offset)
            scored = session.draft_scores(self.head.scores(hidden).last(), drafts)
            token, law = self._pick(scored)
            sure = self._top(scored, law)
            drafts.append(token)
            unverified.append(sure >= threshold)
            if self.resume_layer:
                states.append(self._own)
            if law is not None:
                laws.append(law)
            counts += alive
            pending += alive & ~unverified[-1]
            alive &= (pending < self.pace.now) & (sure >= self.confidence)
            if not bool(alive.any()):
                break
        return self._proposal(drafts, counts, laws, states, torch.stack(unverified, dim=1))

    @classmethod
    def claims(cls, params: DraftParams) -> bool:
        """Promise unchanged output in mode lossless only."""
        return cast(ReducedExpertsParams, params).mode == "lossless"

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need routed experts of a known family."""
        layers = moe_layers(target.layers)
        return unsupported_reason(str(target.config.model_type), layers, target.layers, ROUTED)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ, or the window of mode adaptive."""
        resolved = cast(ReducedExpertsParams, params)
        return resolved.max_window if resolved.mode == "adaptive" else int(resolved.gamma)
