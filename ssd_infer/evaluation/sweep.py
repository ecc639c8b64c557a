"""The long-context sweep of an evaluation: sparse drafts beside plain decoding at every batch and context asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from ssd_infer.corpus import build_tasks
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, DataError
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.budget import Deadline
from ssd_infer.evaluation.contenders import one_line
from ssd_infer.evaluation.long_context import cell_report, measure_cell
from ssd_infer.evaluation.prefilled import FilledRow, Prefilled, prefill, room_for
from ssd_infer.strategies.sparse_attention.sparse_attention import SparseAttention

NAME = "sparse_attention"
RATIOS = (0.025, 0.05, 0.1, 0.2)
TASK = "long_continuation"
_GAMMA, _DISTINCT = 8, 4
_Item = TypeVar("_Item")


def sparse_sweep(bench: EvalContext, deadline: Deadline) -> dict[str, Any]:
    """Return `cells` (throughput by batch × context) and `budgets` (acceptance by slots read), or a `reason`.

    Empty when no contexts were asked for. Cells that the deadline leaves no time for, or that fail, become a
    warning.
    """
    contexts, batches = bench.settings.contexts, bench.settings.batches
    if not contexts:
        return {}
    reason = _unsupported(bench)
    if reason is not None or not isinstance(bench.target, Target):
        return {"reason": reason}
    cells: list[dict[str, Any]] = []
    budgets: list[dict[str, Any]] = []
    rows: list[FilledRow] = []
    for context in sorted(contexts):
        what = f"prefilling {context} tokens of context"
        filled = _tried(bench, what, partial(_filled, bench, bench.target, context, max(batches)))
        rows = filled or rows
        for batch in sorted(batches) if filled else ():
            if deadline.passed and cells:
                bench.notes.append(f"the time limit left out batch {batch} at {context} tokens of context")
                continue
            bench.say(f"decoding {batch} rows of {context} tokens with sparse attention")
            what = f"the sweep at batch {batch} and {context} tokens of context"
            cells += _tried(bench, what, partial(_cell, bench, bench.target, rows, batch))
    if rows and not deadline.passed:
        bench.say("measuring acceptance by budget")
        what = "acceptance by budget"
        budgets = _tried(bench, what, partial(_by_budget, bench, bench.target, rows, min(batches)))
    return {"cells": cells, "budgets": budgets}


def attach(row: dict[str, Any], sweep: dict[str, Any]) -> None:
    """Add `sweep` to a report's row of this strategy; a cell whose output changed fails the row and the run."""
    row["extra"]["sweep"] = sweep
    wrong = [
        f"batch {cell['batch']} at {cell['context']} tokens of context"
        for cell in sweep.get("cells", [])
        if cell["name"] == NAME and cell["verdict"] == "fail"
    ]
    if wrong:
        detail = f"the output of the long-context sweep (greedy) changed: {', '.join(wrong)}"
        row["lossless"] = {**row["lossless"], "verdict": "fail", "detail": detail}
        if row["status"] == "not_applicable":  # a run without greedy decoding has no other row to fail
            row["status"], row["reason"] = "failed", detail


def _tried(bench: EvalContext, what: str, measure: Callable[[], list[_Item]]) -> list[_Item]:
    """Return what `measure` returns; if it fails, nothing and a warning: a sweep must not cost a report its rows."""
    try:
        return measure()
    except (ConfigError, DataError):
        raise
    except Exception as error:  # noqa: BLE001
        bench.notes.append(f"{what} failed: {one_line(error)}")
        return []


def _unsupported(bench: EvalContext) -> str | None:
    if isinstance(bench.target, str):
        return bench.target
    if bench.tokenizer is None:
        return "the sweep needs prompts of any length, and this checkpoint has no tokenizer to cut them with"
    if bench.settings.draft not in ("all", NAME):
        return f"not measured: this run asked for draft={bench.settings.draft} only"
    return SparseAttention.unsupported_reason(bench.target)


def _filled(bench: EvalContext, target: Target, context: int, batch: int) -> list[FilledRow]:
    """Prefill at most four different prompts; larger batches repeat them."""
    count = min(batch, _DISTINCT)
    task = build_tasks([TASK], bench.tokenizer, count, context, bench.settings.seed)[0]
    return [prefill(target, prompt) for prompt in task.prompts]


def _cell(bench: EvalContext, target: Target, rows: list[FilledRow], batch: int) -> list[dict[str, Any]]:
    settings = bench.settings
    params = settings.draft_params if settings.draft == NAME else {}
    filled = Prefilled(target, rows, batch, settings.max_new_tokens, room_for([params]))
    found = measure_cell(filled, {NAME: params}, settings.max_new_tokens, settings.repeats)
    return cell_report(found, filled.slot_bytes, torch.finfo(bench.dtype).bits >= 32)


def _by_budget(bench: EvalContext, target: Target, rows: list[FilledRow], batch: int) -> list[dict[str, Any]]:
    """Return acceptance of `pillar` at γ = 8, with nothing but the ratio deciding what is read."""
    filled = Prefilled(target, rows, batch, bench.settings.max_new_tokens)
    fixed = {"selector": "pillar", "gamma": _GAMMA, "min_budget": 1, "cold_start": "prompt"}
    drafts = {f"{ratio:g}": fixed | {"ratio": ratio} for ratio in RATIOS}
    found = measure_cell(filled, drafts, bench.settings.max_new_tokens, 1, their_tokens=0)
    report = cell_report(found, filled.slot_bytes, torch.finfo(bench.dtype).bits >= 32)
    return [row for row in report if row["name"] in drafts]
