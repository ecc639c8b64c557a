"""Throughput at one batch and context: drafts beside plain decoding, all from the same rows, which are prefilled once.

Time counts from the first token on, until the slowest row has its tokens; no row ends, so the batch stays whole.
All take turns, and their tokens are compared with plain decoding's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ssd_infer.engine.clock import Clock, synchronise
from ssd_infer.engine.drafter import DraftParams
from ssd_infer.engine.generation_rules import switched_off
from ssd_infer.engine.kernels.plain import grouped_layers
from ssd_infer.engine.loop import Decoding, Planner
from ssd_infer.engine.model_view import cache_keyword
from ssd_infer.engine.prefilled import ROOM, Prefilled
from ssd_infer.engine.session import Row
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.errors import one_line
from ssd_infer.tuning.budget import Deadline
from ssd_infer.tuning.peak import PeakMemory

PLAIN, THEIRS = "plain", "transformers"
LATE = "the time limit left it out"
_WARM = 2
"""Tokens decoded untimed by whoever is about to have the first turn: it would pay for all that is made once."""


@dataclass(frozen=True, slots=True)
class Way:
    """A draft with its parameters; without a planner it decodes plainly, for the reason in `note`."""

    name: str
    planner: Planner | None = None
    params: DraftParams | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Its parameters as JSON-ready data."""
    note: str = ""
    claimed: bool = True
    """Whether it promises the tokens of plain decoding."""


@dataclass(slots=True)
class Measured:
    """One contender at one batch and context."""

    name: str
    batch: int
    context: int
    way: Way | None = None
    """Its draft; None for plain decoding and transformers."""
    seconds: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    """Seconds of one verify pass (a step, where nothing is drafted), a mean a repeat."""
    emitted: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    drafted: int = 0
    alpha: float | None = None
    tau: float | None = None
    peak_bytes: int | None = None
    """Highest memory of the process or device while it ran; None where that cannot be read."""
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens a second, the median over repeats."""
        return statistics.median(n / s for n, s in zip(self.emitted, self.seconds, strict=True))

    @property
    def pass_seconds(self) -> float | None:
        """Seconds of a verify pass, the median over repeats; None where passes do more than verify."""
        return statistics.median(self.passes) if self.passes else None


Turn = Callable[[Measured], None]
Fail = Callable[[str, str], None]
"""(name, reason): someone could not be measured, and the others go on."""


def room_for(ways: Iterable[Way]) -> int:
    """Return the slots that the longest drafts of `ways` need beyond twice the tokens to decode."""
    drafts = [
        way.planner.max_draft(way.params)
        for way in ways
        if way.planner is not None and way.params is not None
    ]
    return max([ROOM, *(longest + 1 for longest in drafts)])


def measure_cell(
    filled: Prefilled,
    ways: Sequence[Way],
    new_tokens: int,
    repeats: int,
    their_tokens: int | None = None,
    deadline: Deadline | None = None,
    fail: Fail | None = None,
) -> list[Measured]:
    """Measure plain decoding, transformers' `generate` and every draft of `ways`, in turns.

    transformers runs once, and for `their_tokens` only (None: as many as the others; 0: not at all): at long contexts
    it takes longer than all others together. A way that decodes plainly is not timed. With `fail`, whoever raises, or
    comes to no turn before `deadline`, is told of and left out; plain decoding has its turn, and what it raises is
    raised.
    """
    theirs = new_tokens if their_tokens is None else their_tokens
    turns: dict[str, Turn] = {PLAIN: partial(_ours, filled, new_tokens, None)}
    if theirs:
        turns[THEIRS] = partial(_theirs, filled, theirs)
    turns |= {way.name: partial(_ours, filled, new_tokens, way) for way in ways if way.planner is not None}
    batch, context = len(filled.rows), max(map(len, filled.prompts))
    known = {way.name: way for way in ways}
    found = {name: Measured(name, batch, context, known.get(name)) for name in [*turns, *known]}
    for name in _order(list(turns), repeats):
        row, late = found.get(name), deadline is not None and deadline.passed
        if row is None or (late and row.seconds):
            continue
        told = None if name == PLAIN else fail
        if late and told is not None:
            told(name, LATE)
            del found[name]
        elif not _take_turn(filled, turns[name], row, told):
            del found[name]
    return list(found.values())


def _order(names: list[str], repeats: int) -> list[str]:
    """Return who has the next turn, in rotating order; transformers has one turn."""
    order = []
    for repeat in range(repeats):
        start = repeat % len(names)
        order += [name for name in names[start:] + names[:start] if name != THEIRS or not repeat]
    return order


def _take_turn(filled: Prefilled, turn: Turn, row: Measured, fail: Fail | None) -> bool:
    """Return whether it was measured; an error is told to `fail`, or raised where there is none."""
    try:
        if row.name != THEIRS and not row.seconds:
            _ours(filled, _WARM, row.way, Measured(row.name, row.batch, row.context), kept=False)
        with PeakMemory(filled.target.device) as peak:
            turn(row)
    except Exception as error:
        if fail is None:
            raise
        fail(row.name, one_line(error))
        return False
    if peak.bytes is not None:
        row.peak_bytes = max(row.peak_bytes or 0, peak.bytes)
    return True


@torch.inference_mode()
def _ours(filled: Prefilled, new_tokens: int, way: Way | None, into: Measured, kept: bool = True) -> None:
    """Decode until every row has `new_tokens` more than its first; the draft remembers it where it is `kept`."""
    session, stats = filled.session(), Stats.empty(len(filled.rows))
    plan = None
    if way is not None and way.planner is not None and way.params is not None:
        plan = way.planner.plan(session, way.params)
    session.layers = (None if plan is None else plan.layers) or grouped_layers(session)
    drafter, loop = (None, Decoding) if plan is None else (plan.drafter, plan.loop)
    if drafter is not None:
        drafter.prefilled()
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
    into.alpha, into.tau, into.drafted = stats.total.alpha, stats.total.tau, stats.total.drafted
    phases = clock.seconds()
    if "verify" in phases:
        into.passes.append(phases["verify"] / stats.total.forwards["target"])
    if drafter is not None and kept:
        positions = zip(stats.total.per_position_accepted, stats.total.per_position_drafted, strict=True)
        shares = [taken / reached if reached else None for taken, reached in positions]
        drafter.finish()
        into.report = drafter.report() | {"per_position": shares, "seconds": phases}


def _widest(rows: Sequence[Row]) -> int:
    return max(row.emitted for row in rows)


@torch.inference_mode()
def _theirs(filled: Prefilled, new_tokens: int, into: Measured) -> None:
    """Let transformers' generate go on from a copy of the same cache."""
    model: Any = filled.target.model
    cache, width = filled.transformers_cache(), len(filled.prompts[0])
    if cache is None:
        raise ValueError("its cache holds more than keys and values, which cannot be handed on")
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
