"""The long-context sweep of an evaluation: sparse drafts beside plain decoding at every batch and context asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from ssd_infer.corpus import build_tasks
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, DataError, one_line
from ssd_infer.strategies.sparse_attention import SPARSE_ATTENTION
from ssd_infer.strategies.sparse_attention.long_context import cell_report, measure_cell
from ssd_infer.strategies.sparse_attention.prefilled import FilledRow, Prefilled, prefill, room_for
from ssd_infer.strategies.sparse_attention.sparse_draft import SparseDraft
from ssd_infer.strategies.study import Facts, StudyContext

NAME = SPARSE_ATTENTION.name
RATIOS = (0.025, 0.05, 0.1, 0.2)
TASK = "long_continuation"
_GAMMA, _DISTINCT = 8, 4
_Item = TypeVar("_Item")


def sparse_sweep(strategy: type[SparseDraft], context: StudyContext) -> dict[str, Any]:
    """Return `cells` (throughput by batch × context) and `budgets` (acceptance by slots read), or a `reason`.

    Empty when no contexts were asked for. Cells that the deadline leaves no time for, or that fail, become a
    warning.
    """
    lengths, batches = context.settings.contexts, context.settings.batches
    if not lengths:
        return {}
    reason = _unsupported(strategy, context)
    if reason is not None or not isinstance(context.target, Target):
        return {"reason": reason}
    cells: list[dict[str, Any]] = []
    budgets: list[dict[str, Any]] = []
    rows: list[FilledRow] = []
    for length in sorted(lengths):
        what = f"prefilling {length} tokens of context"
        filled = _tried(context, what, partial(_filled, context, context.target, length, max(batches)))
        rows = filled or rows
        for batch in sorted(batches) if filled else ():
            if context.deadline.passed and cells:
                context.notes.append(f"the time limit left out batch {batch} at {length} tokens of context")
                continue
            context.say(f"decoding {batch} rows of {length} tokens with sparse attention")
            what = f"the sweep at batch {batch} and {length} tokens of context"
            cells += _tried(context, what, partial(_cell, strategy, context, context.target, rows, batch))
    if rows and not context.deadline.passed:
        context.say("measuring acceptance by budget")
        what = "acceptance by budget"
        budgets = _tried(
            context, what, partial(_by_budget, strategy, context, context.target, rows, min(batches))
        )
    return {"cells": cells, "budgets": budgets}


def sweep_fault(sweep: Facts) -> str | None:
    """Say which cells of this strategy's changed the output, if any did."""
    wrong = [
        f"batch {cell['batch']} at {cell['context']} tokens of context"
        for cell in sweep.get("cells", [])
        if cell["name"] == NAME and cell["verdict"] == "fail"
    ]
    return f"the output of the long-context sweep (greedy) changed: {', '.join(wrong)}" if wrong else None


def _tried(context: StudyContext, what: str, measure: Callable[[], list[_Item]]) -> list[_Item]:
    """Return what `measure` returns; if it fails, nothing and a warning: a sweep must not cost a report its rows."""
    try:
        return measure()
    except (ConfigError, DataError):
        raise
    except Exception as error:  # noqa: BLE001
        context.notes.append(f"{what} failed: {one_line(error)}")
        return []


def _unsupported(strategy: type[SparseDraft], context: StudyContext) -> str | None:
    if isinstance(context.target, str):
        return context.target
    if context.tokenizer is None:
        return "the sweep needs prompts of any length, and this checkpoint has no tokenizer to cut them with"
    if context.settings.draft not in ("all", NAME):
        return f"not measured: this run asked for draft={context.settings.draft} only"
    return strategy.unsupported_reason(context.target)


def _filled(context: StudyContext, target: Target, length: int, batch: int) -> list[FilledRow]:
    """Prefill at most four different prompts; larger batches repeat them."""
    count = min(batch, _DISTINCT)
    task = build_tasks([TASK], context.tokenizer, count, length, context.settings.seed)[0]
    return [prefill(target, prompt) for prompt in task.prompts]


def _cell(
    strategy: type[SparseDraft], context: StudyContext, target: Target, rows: list[FilledRow], batch: int
) -> list[dict[str, Any]]:
    settings = context.settings
    params = settings.draft_params if settings.draft == NAME else {}
    filled = Prefilled(target, rows, batch, settings.max_new_tokens, room_for([params]))
    found = measure_cell(strategy, filled, {NAME: params}, settings.max_new_tokens, settings.repeats)
    return cell_report(found, filled.slot_bytes, torch.finfo(target.dtype).bits >= 32)


def _by_budget(
    strategy: type[SparseDraft], context: StudyContext, target: Target, rows: list[FilledRow], batch: int
) -> list[dict[str, Any]]:
    """Return acceptance of `pillar` at γ = 8, with nothing but the ratio deciding what is read."""
    filled = Prefilled(target, rows, batch, context.settings.max_new_tokens)
    fixed = {"selector": "pillar", "gamma": _GAMMA, "min_budget": 1, "cold_start": "prompt"}
    drafts = {f"{ratio:g}": fixed | {"ratio": ratio} for ratio in RATIOS}
    found = measure_cell(strategy, filled, drafts, context.settings.max_new_tokens, 1, their_tokens=0)
    report = cell_report(found, filled.slot_bytes, torch.finfo(target.dtype).bits >= 32)
    return [row for row in report if row["name"] in drafts]
