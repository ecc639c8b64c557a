"""Throughput against batch × context: sparse drafts beside the fastest plain decoding, from rows prefilled once.

Time counts from the first token on, until the slowest row has its tokens; no row ends, so the batch stays whole.
Contenders take turns and their tokens are compared with plain decoding's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from ssd_infer.engine.clock import Clock, synchronise
from ssd_infer.engine.generation_rules import switched_off
from ssd_infer.engine.kernels.plain import grouped_layers
from ssd_infer.engine.loop import Decoding, Plan
from ssd_infer.engine.model_view import cache_keyword
from ssd_infer.engine.session import Row, Session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.strategies.sparse_attention.prefilled import Prefilled
from ssd_infer.strategies.sparse_attention.sparse_draft import SparseDraft
from ssd_infer.tuning.peak import PeakMemory

PLAIN, THEIRS = "plain", "transformers"


@dataclass(slots=True)
class Measured:
    """One contender at one batch and context."""

    name: str
    batch: int
    context: int
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    alpha: float | None = None
    tau: float | None = None
    peak_bytes: int | None = None
    """Highest memory of the process or device while it ran; None where that cannot be read."""
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens a second, the median over repeats."""
        return statistics.median(n / s for n, s in zip(self.emitted, self.seconds, strict=True))


Call = Callable[[Measured], None]


def measure_cell(
    strategy: type[SparseDraft],
    filled: Prefilled,
    drafts: Mapping[str, Mapping[str, Any]],
    new_tokens: int,
    repeats: int,
    their_tokens: int | None = None,
) -> list[Measured]:
    """Measure plain decoding, `drafts` of `strategy` (name → draft_params) and transformers' `generate`, in turns.

    transformers runs once, and for `their_tokens` only (None: as many as the others; 0: not at all): at long contexts
    it takes longer than all others together.
    """
    batch, context = len(filled.rows), max(map(len, filled.prompts))
    found = {PLAIN: Measured(PLAIN, batch, context)}
    calls: dict[str, Call] = {PLAIN: lambda into: _ours(filled, new_tokens, None, into)}
    theirs = new_tokens if their_tokens is None else their_tokens
    if theirs:
        found[THEIRS] = Measured(THEIRS, batch, context)
        calls[THEIRS] = lambda into: _theirs(filled, theirs, into)
    for name, raw in drafts.items():
        resolved = strategy.prepare(filled.target, raw, filled.prompts, do_sample=False)
        params = {} if resolved.params is None else resolved.params.described()
        found[name] = Measured(name, batch, context, params, resolved.note)
        plan = None if resolved.params is None else partial(strategy.plan, params=resolved.params)
        calls[name] = _draft_call(filled, new_tokens, plan)
    names = list(calls)
    for repeat in range(repeats):
        start = repeat % len(names)
        for name in names[start:] + names[:start]:
            if name == THEIRS and repeat:
                continue
            with PeakMemory(filled.target.device) as peak:
                calls[name](found[name])
            if peak.bytes is not None:
                found[name].peak_bytes = max(found[name].peak_bytes or 0, peak.bytes)
    return list(found.values())


def _draft_call(filled: Prefilled, new_tokens: int, planning: Callable[[Session], Plan] | None) -> Call:
    return lambda into: _ours(filled, new_tokens, planning, into)


@torch.inference_mode()
def _ours(
    filled: Prefilled, new_tokens: int, planning: Callable[[Session], Plan] | None, into: Measured
) -> None:
    """Decode until every row has `new_tokens` more than its first."""
    session, stats = filled.session(), Stats.empty(len(filled.rows))
    plan = None if planning is None else planning(session)
    drafter = None if plan is None else cast(SparseDraft, plan.drafter)
    session.layers = grouped_layers(session) if plan is None else plan.layers
    if drafter is not None:
        _show_prompts(session, drafter)
    loop = Decoding if plan is None else plan.loop
    decoding, clock = loop(session, drafter, StopRule(), stats), Clock(filled.target.device)
    start = _now(filled.target.device)
    if drafter is not None:
        drafter.begin()
    while min(row.emitted for row in session.rows) <= new_tokens and _widest(session.rows) <= 2 * new_tokens:
        decoding.round(clock)
    into.seconds.append(_now(filled.target.device) - start)
    stats.finish()
    into.emitted.append(stats.total.emitted)
    into.tokens = [row.tokens[row.prompt_length :][: new_tokens + 1] for row in session.rows]
    into.alpha, into.tau = stats.total.alpha, stats.total.tau
    if drafter is not None:
        positions = zip(stats.total.per_position_accepted, stats.total.per_position_drafted, strict=True)
        shares = [taken / reached if reached else None for taken, reached in positions]
        drafter.finish()
        into.report = drafter.report() | {"per_position": shares, "seconds": clock.seconds()}


def _show_prompts(session: Session, drafter: SparseDraft) -> None:
    """Let the selector hear the last queries of the prompts, as it would have in the prefill; no slot is changed."""
    width = min(drafter.selector.prompt_queries, *session.lengths)
    if not width:
        return
    starts = [length - width for length in session.lengths]
    rows = zip(session.rows, starts, session.lengths, strict=True)
    ids = torch.tensor([row.tokens[start:end] for row, start, end in rows], device=session.target.device)
    held = [session.cache.held(layer) for layer in range(session.target.num_layers)]
    kept = [
        [part[row, :, start : start + width].clone() for row, start in enumerate(starts)]
        for pair in held
        for part in pair
    ]
    window = session.window_at(starts, width)
    session.run(session.target.embed_at(ids, window, session.cache), window)
    for part, slots in zip((part for pair in held for part in pair), kept, strict=True):
        for row, start in enumerate(starts):
            part[row, :, start : start + width] = slots[row]


def _widest(rows: Sequence[Row]) -> int:
    return max(row.emitted for row in rows)


@torch.inference_mode()
def _theirs(filled: Prefilled, new_tokens: int, into: Measured) -> None:
    """Let transformers' generate go on from a copy of the same cache."""
    model: Any = filled.target.model
    cache, width = filled.transformers_cache(), len(filled.prompts[0])
    ids = torch.tensor([[*row.prompt, row.first] for row in filled.rows], device=filled.target.device)
    start = _now(filled.target.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        **switched_off(model)
        | {
            cache_keyword(model.forward): cache,
            "do_sample": False,
            "max_new_tokens": new_tokens,
            "min_new_tokens": new_tokens,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
    )
    into.seconds.append(_now(filled.target.device) - start)
    into.emitted.append(len(filled.rows) * new_tokens)
    into.tokens = out[:, width:].tolist()


def _now(device: torch.device) -> float:
    synchronise(device)
    return time.perf_counter()


def cell_report(cell: Sequence[Measured], slot_bytes: int, strict: bool) -> list[dict[str, Any]]:
    """Return JSON-ready rows of one cell: rates, ratios to both plain decodings, acceptance, bytes read, verdict.

    `strict` (float32 and wider): any other token than plain decoding's fails; otherwise the verdict is not run.
    """
    peers = {row.name: row for row in cell}
    plain = peers[PLAIN]
    fastest = max(row.rate for row in cell if row.name in (PLAIN, THEIRS))
    rows = []
    for row in cell:
        pairs = zip(row.tokens, plain.tokens, strict=True)
        equal = sum(mine[: len(other)] == other[: len(mine)] for mine, other in pairs)
        verdict = "pass" if equal == row.batch else "fail" if strict else "not_run"
        rows.append(
            {
                "name": row.name,
                "batch": row.batch,
                "context": row.context,
                "params": row.params,
                "note": row.note,
                "tokens_per_second": row.rate,
                "speedup": row.rate / fastest,
                "over_plain": row.rate / plain.rate,
                "over_transformers": row.rate / peers[THEIRS].rate if THEIRS in peers else None,
                "alpha": row.alpha,
                "tau": row.tau,
                "kv_bytes_per_token": row.report.get("kv_bytes_per_token", row.context * slot_bytes),
                "peak_bytes": row.peak_bytes,
                "equal": equal,
                "verdict": verdict,
                "drafter": row.report,
            }
        )
    return rows
