"""The long-context sweep of an evaluation: sparse drafts beside plain decoding at every batch and context asked for."""

from __future__ import annotations

from typing import Any

import torch

from ssd_infer.drafts.sparse_attention import SparseAttention
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.bench import Bench
from ssd_infer.evaluation.budget import Deadline
from ssd_infer.evaluation.long_context import cell_report, measure_cell
from ssd_infer.evaluation.prefilled import FilledRow, Prefilled, prefill
from ssd_infer.evaluation.tasks import build_tasks

NAME = "sparse_attention"
RATIOS = (0.025, 0.05, 0.1, 0.2)
TASK = "long_continuation"
_GAMMA, _DISTINCT = 8, 4


def sparse_sweep(bench: Bench, deadline: Deadline) -> dict[str, Any]:
    """Return `cells` (throughput by batch × context) and `budgets` (acceptance by slots read), or a `reason`.

    Empty when no contexts were asked for. Cells that the deadline leaves no time for become a warning.
    """
    contexts, batches = bench.settings.contexts, bench.settings.batches
    if not contexts:
        return {}
    reason = _why_not(bench)
    if reason is not None or not isinstance(bench.target, Target):
        return {"reason": reason}
    cells: list[dict[str, Any]] = []
    budgets: list[dict[str, Any]] = []
    for context in sorted(contexts):
        rows = _filled(bench, bench.target, context, max(batches))
        for batch in sorted(batches):
            if deadline.passed and cells:
                bench.notes.append(f"the time limit left out batch {batch} at {context} tokens of context")
                continue
            bench.say(f"decoding {batch} rows of {context} tokens with sparse attention")
            cells += _cell(bench, Prefilled(bench.target, rows, batch, bench.settings.max_new_tokens))
    if not deadline.passed:
        bench.say("measuring acceptance by budget")
        widest = Prefilled(bench.target, rows, min(batches), bench.settings.max_new_tokens)
        budgets = _by_budget(bench, widest)
    return {"cells": cells, "budgets": budgets}


def _why_not(bench: Bench) -> str | None:
    if isinstance(bench.target, str):
        return bench.target
    if bench.tokenizer is None:
        return "the sweep needs prompts of any length, and this checkpoint has no tokenizer to cut them with"
    if bench.settings.draft not in ("all", NAME):
        return f"not measured: this run asked for draft={bench.settings.draft} only"
    return SparseAttention.applicable(bench.target)


def _filled(bench: Bench, target: Target, context: int, batch: int) -> list[FilledRow]:
    """Prefill at most four different prompts; larger batches repeat them."""
    count = min(batch, _DISTINCT)
    task = build_tasks([TASK], bench.tokenizer, count, context, bench.settings.seed)[0]
    return [prefill(target, prompt) for prompt in task.prompts]


def _cell(bench: Bench, filled: Prefilled) -> list[dict[str, Any]]:
    settings = bench.settings
    params = settings.draft_params if settings.draft == NAME else {}
    found = measure_cell(filled, {NAME: params}, settings.max_new_tokens, settings.repeats)
    rows = cell_report(found, filled.slot_bytes, torch.finfo(bench.dtype).bits >= 32)
    bench.notes += [
        f"{row['name']} changed the output at batch {row['batch']} and {row['context']} tokens of context"
        for row in rows
        if row["name"] == NAME and row["verdict"] == "fail"
    ]
    return rows


def _by_budget(bench: Bench, filled: Prefilled) -> list[dict[str, Any]]:
    """Return acceptance of `pillar` at γ = 8, with nothing but the ratio deciding what is read."""
    fixed = {"selector": "pillar", "gamma": _GAMMA, "min_budget": 1, "cold_start": "prompt"}
    drafts = {f"{ratio:g}": fixed | {"ratio": ratio} for ratio in RATIOS}
    found = measure_cell(filled, drafts, bench.settings.max_new_tokens, 1, their_tokens=0)
    rows = cell_report(found, filled.slot_bytes, torch.finfo(bench.dtype).bits >= 32)
    return [row for row in rows if row["name"] in drafts]
