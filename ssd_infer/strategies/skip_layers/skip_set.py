"""Draft `skip_set`: the model without some of its attention and MLP sublayers drafts, the whole model verifies.

Draft & Verify (arXiv 2309.08168). The prompt is prefilled by the full model, draft keys go to slots past the committed
length, and every verify pass writes over them: no key a skipping draft computed survives a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.sublayers import SkipSet, unsupported_reason
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, Resolved, at_least
from ssd_infer.strategies.skip_layers import SKIP_SET
from ssd_infer.strategies.skip_layers.guard import GainGuard
from ssd_infer.strategies.skip_layers.threshold import AdaptiveThreshold
from ssd_infer.strategies.skip_layers.view_draft import ViewDraft
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs

if TYPE_CHECKING:
    from ssd_infer.report.table import Plot, Table
    from ssd_infer.strategies.study import Study, StudyContext


@dataclass(slots=True)
class SkipSetParams(DraftParams):
    """Which sublayers to skip, how many tokens to draft, and the threshold that ends a draft early."""

    skip_attention: list[int] | Auto = "auto"
    skip_mlp: list[int] | Auto = "auto"
    gamma: int | Auto = "auto"
    confidence: float | Auto = "auto"
    """θ: a row stops after a token whose top probability is below it; 0 turns that off."""
    adapt: bool = True
    """Let θ follow the acceptance rate."""
    aim: float | Auto = "auto"
    """A*, the acceptance that θ is steered to; auto is what calibration predicts, 0.9 without calibration."""
    epsilon: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    guard: float | Auto = "auto"
    """Running speedup, by recent acceptance and measured costs, below which a stream is decoded plainly for a while; 0
    never stops. Auto guards a set that was found, not one that was given."""

    @property
    def settled(self) -> bool:
        """Tell whether no search and no calibration is needed."""
        return "auto" not in (self.skip_attention, self.skip_mlp, self.gamma, self.confidence)

    @property
    def skips(self) -> SkipSet | None:
        """The given skip set; None when any part of it is auto."""
        if isinstance(self.skip_attention, str) or isinstance(self.skip_mlp, str):
            return None
        return SkipSet.of(self.skip_attention, self.skip_mlp)

    def problems(self, target: Target | None) -> list[Problem]:
        """Check layer numbers, gamma >= 1 and that shares lie in [0, 1]."""
        found = at_least("gamma", self.gamma, 1)
        for name in ("skip_attention", "skip_mlp"):
            found += _bad_layers(name, getattr(self, name), None if target is None else target.num_layers)
        if (self.skip_attention == "auto") != (self.skip_mlp == "auto"):
            key = "skip_mlp" if self.skip_mlp == "auto" else "skip_attention"
            rule = "must be given when the other list is"
            found.append(Problem(f"draft_params.{key}", rule, "auto", "an empty list skips none"))
        for name in ("confidence", "aim", "epsilon", "beta1", "beta2"):
            value = getattr(self, name)
            if not isinstance(value, str) and not 0 <= value <= 1:
                found.append(Problem(f"draft_params.{name}", "must be in [0, 1]", value))
        if not isinstance(self.guard, str) and not self.guard >= 0:
            found.append(Problem("draft_params.guard", "must be >= 0", self.guard, "0 never stops"))
        return found


def _bad_layers(name: str, layers: list[int] | str, count: int | None) -> list[Problem]:
    if isinstance(layers, str):
        return []
    wrong = [layer for layer in layers if layer < 0 or (count is not None and layer >= count)]
    rule = f"must hold layer numbers from 0 to {'L-1' if count is None else count - 1}"
    return [Problem(f"draft_params.{name}", rule, layer) for layer in wrong[:1]]


class SkipSetDrafter(ViewDraft):
    """Draft with a fixed subset of the target's sublayers, at most γ tokens a round."""

    info = SKIP_SET
    Params = SkipSetParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Build the view; `params` must have no `auto` left but `aim`."""
        super().__init__(session, params)
        settled = cast(SkipSetParams, params)
        self.use(settled.skips or SkipSet())
        self.gamma = int(settled.gamma)
        self.confidence = float(settled.confidence)
        aim = 0.9 if isinstance(settled.aim, str) else settled.aim
        self.threshold = AdaptiveThreshold(
            self.confidence, aim, settled.epsilon, settled.beta1, settled.beta2
        )
        self._adapts = settled.adapt and self.confidence > 0
        self.guard: GainGuard | None = None
        if not isinstance(settled.guard, str) and settled.guard > 0:
            rows = session.rows
            context = max(len(row.tokens) + row.limit // 2 for row in rows)
            costs = cached_sublayer_costs(session.target, context, not session.sampler.greedy, len(rows))
            self.guard = GainGuard(costs, settled.skips or SkipSet(), settled.guard)

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
        from ssd_infer.strategies.skip_layers.stream_study import study_offline
        from ssd_infer.strategies.streams import stream_studies

        if cls.info is not SKIP_SET:
            return []
        return stream_studies(cls, context, study_offline)

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its search, and acceptance along the streams."""
        from ssd_infer.strategies.skip_layers.search_report import search_tables
        from ssd_infer.strategies.stream_report import stream_tables

        return [*search_tables(row), *stream_tables(row)]

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw acceptance along the streams."""
        from ssd_infer.strategies.stream_report import stream_plots

        return stream_plots(row)

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need layers whose sublayers can be left out one by one."""
        return unsupported_reason(target)

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Take the saved set or search one on `prompts`; plain decoding when no gain is predicted or measured."""
        from ssd_infer.strategies.skip_layers.skip_calibration import resolve_skip_set

        return resolve_skip_set(cls, target, cast(SkipSetParams, params), prompts, do_sample)
