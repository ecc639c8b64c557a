"""Draft `skip_set`: the model without some of its attention and MLP sublayers drafts, the whole model verifies.

Draft & Verify (arXiv 2309.08168). The prompt is prefilled by the full model, draft keys go to slots past the committed
length, and every verify pass writes over them: no key a skipping draft computed survives a round.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.sublayers import SkipSet, unsupported_reason
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import DraftParams, Resolved
from ssd_infer.strategies.draft_head import prompts_of, saved_seconds
from ssd_infer.strategies.skip_layers import SKIP_SET
from ssd_infer.strategies.skip_layers.guard import GainGuard
from ssd_infer.strategies.skip_layers.skip_calibration import resolve_skip_set
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.skip_layers.skip_trees import tree_seconds
from ssd_infer.strategies.skip_layers.stream_study import study_offline
from ssd_infer.strategies.skip_layers.threshold import AdaptiveThreshold
from ssd_infer.strategies.skip_layers.view_draft import ViewDraft
from ssd_infer.strategies.streams import stream_studies
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs
from ssd_infer.tuning.tree_costs import most_nodes
from ssd_infer.tuning.tree_shapes import shape_of

if TYPE_CHECKING:
    from ssd_infer.strategies.study import Study, StudyContext


class SkipSetDrafter(ViewDraft):
    """Draft with a fixed subset of the target's sublayers, at most γ tokens a round."""

    info = SKIP_SET
    Params = SkipSetParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Build the view; `params` must have no `auto` left but `aim`."""
        super().__init__(session, params)
        resolved = cast(SkipSetParams, params)
        self.use(resolved.skips or SkipSet())
        self.gamma = int(resolved.gamma)
        self.confidence = float(resolved.confidence)
        aim = 0.9 if isinstance(resolved.aim, str) else resolved.aim
        self.threshold = AdaptiveThreshold(
            self.confidence, aim, resolved.epsilon, resolved.beta1, resolved.beta2
        )
        self.shape = shape_of(session.target, resolved.tree, resolved.shares, self.gamma)
        self._adapts = resolved.adapt and self.confidence > 0 and self.shape is None
        self.guard: GainGuard | None = None
        if not isinstance(resolved.guard, str) and resolved.guard > 0:
            rows = session.rows
            context = max(len(row.tokens) + row.limit // 2 for row in rows)
            sampled = not session.sampler.greedy
            saved = saved_seconds(session.target, params, prompts_of(session), sampled)
            costs = cached_sublayer_costs(session.target, context, sampled, len(rows)).cheaper(saved)
            skips, seconds = resolved.skips or SkipSet(), None
            if self.shape is not None:
                seconds = tree_seconds(session.target, skips, costs, self.shape, context, sampled)
            self.guard = GainGuard(costs, skips, resolved.guard, seconds)

    def propose(self, limit: int) -> Proposal:
        """Draft, or nothing while the guard expects no gain."""
        if self.guard is not None and not self.guard.drafts():
            return self.session.empty()
        return super().propose(limit)

    def observe(self, feedback: Feedback) -> None:
        """Move the threshold, and let the guard judge."""
        if self.guard is not None:
            rows = len(feedback.counts)
            self.guard.learn(sum(feedback.accepted) / rows, sum(feedback.counts) / rows)
        if self._adapts:
            self.threshold.update(sum(feedback.accepted), sum(feedback.counts))
            self.confidence = self.threshold.theta

    def report(self) -> dict[str, Any]:
        """Return where the threshold ended, and what the guard did."""
        return {"confidence": self.confidence} | ({} if self.guard is None else self.guard.report())

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Decode streams whose text changes with a set found on prose alone, where they were asked for."""
        if cls.info is not SKIP_SET:
            return []
        return stream_studies(cls, context, partial(study_offline, cls))

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need layers whose sublayers can be left out one by one."""
        return unsupported_reason(target)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ, or the nodes of a tree."""
        found = cast(SkipSetParams, params)
        return max(int(found.gamma), most_nodes(found.tree))

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Take the saved set or search one on `prompts`; plain decoding when no gain is predicted or measured."""
        return resolve_skip_set(cls, target, cast(SkipSetParams, params), prompts, do_sample)
