"""Draft `reduced_experts`: the model with fewer experts a token drafts, the model itself verifies.

After SS-MoE (10.1145/3774904.3792218). The output of mode lossless is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import DraftParams, Resolved
from ssd_infer.strategies.head_report import head_tables
from ssd_infer.strategies.reduced_experts import ADAPTIVE, REDUCED_EXPERTS
from ssd_infer.strategies.reduced_experts.expert_calibration import resolve_reduced_experts
from ssd_infer.strategies.reduced_experts.expert_draft import ExpertDraft
from ssd_infer.strategies.reduced_experts.expert_params import AdaptiveParams, ReducedExpertsParams

if TYPE_CHECKING:
    from ssd_infer.report.table import Table


class ReducedExperts(ExpertDraft):
    """Fewer experts draft; `auto` is calibrated."""

    info = REDUCED_EXPERTS

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Choose k_draft, γ, stop and threshold by calibration; plain decoding when no gain is predicted."""
        return resolve_reduced_experts(target, cast(ReducedExpertsParams, params), prompts, do_sample)

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its head."""
        return head_tables(row)


class AdaptiveExperts(ReducedExperts):
    """The lossy mode as a row of its own: SS-MoE's confidence-adaptive verification."""

    info = ADAPTIVE
    lossless = False
    Params = AdaptiveParams  # type: ignore[assignment]  # which takes fewer values of `head`
