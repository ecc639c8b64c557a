"""Draft `sparse_attention`: the whole model drafts, reading a few selected slots of its own cache.

SparseSpec (arXiv 2512.01278). Verification is full attention by our own attention function, whose probabilities
choose what the next draft reads; draft keys live beside the cache, so nothing is rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ssd_infer.engine.kernels.layers import attention_view
from ssd_infer.engine.loop import Decoding, Plan
from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import DraftParams, Resolved
from ssd_infer.strategies.head_report import head_tables
from ssd_infer.strategies.sparse_attention import SPARSE_ATTENTION
from ssd_infer.strategies.sparse_attention.budget_report import budget_plots, read_tables
from ssd_infer.strategies.sparse_attention.budgets import study_budgets
from ssd_infer.strategies.sparse_attention.phases import Balanced
from ssd_infer.strategies.sparse_attention.sparse_calibration import resolve_sparse_attention
from ssd_infer.strategies.sparse_attention.sparse_draft import SparseDraft
from ssd_infer.strategies.sparse_attention.sparse_params import SparseAttentionParams
from ssd_infer.strategies.study import Study

if TYPE_CHECKING:
    from ssd_infer.report.table import Plot, Table
    from ssd_infer.strategies.study import StudyContext


class SparseAttention(SparseDraft):
    """Sparse drafts; `auto` is resolved by measured costs, and rows may draft and verify out of step."""

    info = SPARSE_ATTENTION
    by_batch = True

    @classmethod
    def plan(cls, session: Session, params: DraftParams) -> Plan:
        """Verify through layers whose attention tells the selector what it saw; decode out of step when asked to."""
        drafter = cls(session, params)
        layers = attention_view(session.target, drafter.full)
        return Plan(drafter, layers, Decoding if drafter.params.phases == "lockstep" else Balanced)

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Measure acceptance by budget where long contexts were asked for."""
        if not context.settings.contexts:
            return []
        return [Study("sweep", partial(study_budgets, cls), "prefilled")]

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its head, and what is read of the cache."""
        return [*head_tables(row), *read_tables(row)]

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw acceptance by budget."""
        return budget_plots(row)

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Choose γ by measured costs at this batch and context; plain decoding when none is predicted to gain."""
        return resolve_sparse_attention(target, cast(SparseAttentionParams, params), prompts, do_sample)
