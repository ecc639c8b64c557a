"""Acceptance by the slots that drafts read, on the rows that the sweep of an evaluation has prefilled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ssd_infer.engine.prefilled import FilledRow, Prefilled
from ssd_infer.engine.target import Target
from ssd_infer.strategies.sparse_attention.sparse_draft import SparseDraft
from ssd_infer.strategies.study import StudyContext
from ssd_infer.tuning.cell import Way, measure_cell, room_for
from ssd_infer.tuning.cell_report import cell_report

RATIOS = (0.025, 0.05, 0.1, 0.2)
_GAMMA = 8


def study_budgets(strategy: type[SparseDraft], context: StudyContext) -> dict[str, Any]:
    """Return `budgets`: acceptance at the smallest batch of the sweep, a row for each share of the slots."""
    if not context.wanted or isinstance(context.target, str) or not context.filled:
        return {}
    context.say("measuring acceptance by budget")
    settings = context.settings
    return {
        "budgets": by_budget(
            strategy, context.target, context.filled, min(settings.batches), settings.max_new_tokens
        )
    }


def by_budget(
    strategy: type[SparseDraft], target: Target, rows: Sequence[FilledRow], batch: int, new_tokens: int
) -> list[dict[str, Any]]:
    """Return acceptance of `pillar` at γ = 8, with nothing but the ratio deciding what is read."""
    fixed = {"selector": "pillar", "gamma": _GAMMA, "min_budget": 1, "cold_start": "prompt"}
    ways = []
    for ratio in RATIOS:
        params = strategy.parse(fixed | {"ratio": ratio}, target)
        ways.append(Way(f"{ratio:g}", strategy, params, params.described()))
    filled = Prefilled(target, rows, batch, new_tokens, room_for(ways))
    found = measure_cell(filled, ways, new_tokens, 1, their_tokens=0)
    report = cell_report(found, filled.slot_bytes, torch.finfo(target.dtype).bits >= 32)
    return [row for row in report if row["name"] in {way.name for way in ways}]
