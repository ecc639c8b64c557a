"""The lossless engine: one call checks the states a draft foresaw and keeps the path that STEP takes through them.

    D ← DRAFT(x)            D[0] is STEP(x) itself
    out ← f(D)              one call
    while STEP(D[j], out[j]) ∈ D:  j ← its index
    x ← D[j]

Without a draft D holds one state and this is stepwise decoding, the baseline of every claim. Whatever DRAFT says, the
states walked through are those of stepwise decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ssd_infer.engine.clock import Clock
from ssd_infer.engine.stats import RowStats, Stats
from ssd_infer.families.diffusion.draft import Standing, StateDrafter
from ssd_infer.families.diffusion.memory import Memory, Pass
from ssd_infer.families.diffusion.noise import Key
from ssd_infer.families.diffusion.reader import Ask, Reader
from ssd_infer.families.diffusion.state import Canvas, State
from ssd_infer.families.diffusion.step import Reading, Stepper

Emit = Callable[[int, list[int]], None]


@dataclass(slots=True)
class Lane:
    """One row being decoded."""

    index: int
    """Row of the input."""
    canvas: Canvas
    state: State
    at: int = 0
    """Number of `state` among the row's states of the last pass."""
    upcoming: State | None = None
    """STEP(state), known since the last pass."""
    text: list[int] = field(default_factory=list)
    """Tokens of the blocks the memory keeps, from the canvas' first block on."""
    sent: int = 0
    """Output tokens handed to the streamer."""
    stats: RowStats = field(default_factory=RowStats)

    @property
    def next(self) -> State:
        """STEP(state); raises RuntimeError before the first pass."""
        if self.upcoming is None:
            raise RuntimeError("no pass has been made yet")
        return self.upcoming

    def output(self) -> list[int]:
        """Return the output tokens of the upcoming state that nothing can change any more, in order."""
        canvas, state = self.canvas, self.next
        known = [*self.text, *(token for block in state.done for token in block), *state.tokens]
        known = known[len(canvas.prompt) if canvas.aligned else 0 :]
        return canvas.cut(known[: known.index(canvas.mask)] if canvas.mask in known else known)


@dataclass(slots=True)
class Run:
    """One decoding in progress; also what a drafter may ask (`drafts.base.Source`)."""

    memory: Memory
    stepper: Stepper
    reader: Reader
    drafter: StateDrafter | None
    lanes: list[Lane]
    stats: Stats
    clock: Clock
    rows: int = 0
    """Sequences evaluated."""
    last: Pass | None = None

    @property
    def crosses(self) -> bool:
        """Whether a draft may run into the next block."""
        return self.memory.crosses

    @property
    def width(self) -> int:
        """Tokens of a block."""
        return self.lanes[0].canvas.width

    def ahead(self, depth: int, *, seconds: bool = False) -> list[list[Reading]]:
        """Return each row's readings of its state at the next `depth` steps, from the last call."""
        assert self.last is not None
        return self._ahead(self.last, [(lane.state, lane.at) for lane in self.lanes], depth, seconds)

    def look(self, states: Sequence[State], depth: int) -> list[list[Reading]]:
        """Run one draft call on a state of each row and return readings as `ahead` does."""
        found = self.evaluate([[state] for state in states], "draft")
        return self._ahead(found, [(state, 0) for state in states], depth, seconds=False)

    def evaluate(self, lists: Sequence[Sequence[State]], kind: str = "target") -> Pass:
        """Run the model on `lists` and count the call."""
        found = self.memory.evaluate(lists)
        self.stats.total.forwards[kind] += found.calls
        self.rows += found.rows
        return found

    def ask(self, lane: int, place: int, state: State, offsets: Sequence[int], found: Pass) -> Ask:
        """Return what to read of a state: offsets, where they are predicted, and their noise keys."""
        canvas = self.lanes[lane].canvas
        places = [found.index(lane, place, offset) for offset in offsets]
        if not self.reader.sampled:
            return offsets, places, ()
        return offsets, places, [(canvas.seed, state.revealed, state.start + offset) for offset in offsets]

    def _ahead(
        self, found: Pass, states: Sequence[tuple[State, int]], depth: int, seconds: bool
    ) -> list[list[Reading]]:
        """Read all masked positions of one state a row, for every step whose noise a draft may need."""
        canvases = [lane.canvas for lane in self.lanes]
        asks = [
            self.ask(lane, place, state, canvases[lane].masked(state), found)
            for lane, (state, place) in enumerate(states)
        ]
        width = self.width
        if self.reader.sampled and not self.stepper.order_is_fixed:
            a_step = -(-width // self.stepper.steps_per_block(canvases[0]))
            reach = min(width, depth * a_step) if self.stepper.settings.rule == "schedule" else width
            return self.reader.read_ahead(found.hidden, asks, width, reach, seconds)
        if self.reader.sampled:  # offset k is revealed k steps from here, whatever happens
            asks = [(offsets, places, _later(keys)) for offsets, places, keys in asks]
        return [[reading] * (width + 1) for reading in self.reader.read(found.hidden, asks, width, seconds)]


def _later(keys: Sequence[Key]) -> list[Key]:
    """Return the keys of consecutive offsets, each with the noise of the step that reveals it."""
    return [(seed, revealed + step, position) for step, (seed, revealed, position) in enumerate(keys)]


@torch.inference_mode()
def decode(run: Run, emit: Emit | None = None) -> list[list[int]]:
    """Decode every row to its end and return the outputs in the order of the input."""
    outputs: dict[int, list[int]] = {}
    with run.clock.phase("prefill"):
        _verify(run, [[lane.state] for lane in run.lanes])
    _finish(run, outputs, emit)
    while run.lanes:
        with run.clock.phase("draft"):
            drafts = _draft(run)
        with run.clock.phase("verify"):
            _verify(run, drafts, counted=True)
        _finish(run, outputs, emit)
    return [outputs[index] for index in sorted(outputs)]


def _draft(run: Run) -> list[list[State]]:
    """Return the states each row drafts, its upcoming one first."""
    if run.drafter is None:
        return [[lane.next] for lane in run.lanes]
    gamma = run.drafter.gamma
    standings = [Standing(lane.canvas, lane.state, lane.next, gamma) for lane in run.lanes]
    return run.drafter.propose(standings, run)


def _verify(run: Run, drafts: Sequence[Sequence[State]], counted: bool = False) -> None:
    """Evaluate the drafted states, walk every row along STEP through them, and keep what it has finished."""
    lists = [[state for state in states if not state.ended] for states in drafts]
    found = run.evaluate(lists)
    readings = _readings(run, found, lists)
    for row, (lane, states) in enumerate(zip(run.lanes, lists, strict=True)):
        places = {state: place for place, state in enumerate(states)}
        at, moves = 0, 0
        upcoming = run.stepper.step(lane.canvas, states[0], readings[row][0])
        while upcoming in places:
            at, moves = places[upcoming], moves + 1
            upcoming = run.stepper.step(lane.canvas, states[at], readings[row][at])
        lane.at, lane.upcoming = at, upcoming
        if counted:
            _count(lane.stats, drafts[row], moves + (upcoming.ended and upcoming in drafts[row]))
        _keep(run, row, lane, states[at])
    run.last = found
    run.memory.finish_round()


def _readings(run: Run, found: Pass, lists: Sequence[Sequence[State]]) -> list[list[Reading]]:
    """Read what STEP needs at every evaluated state, in one device call."""
    asks = [
        run.ask(row, place, state, run.stepper.needs(run.lanes[row].canvas, state), found)
        for row, states in enumerate(lists)
        for place, state in enumerate(states)
    ]
    flat = iter(run.reader.read(found.hidden, asks, run.width))
    return [[next(flat) for _ in states] for states in lists]


def _keep(run: Run, row: int, lane: Lane, state: State) -> None:
    """Hand the blocks that `state` finished to the memory; what it keeps, no state carries along any more."""
    lane.state = run.memory.keep(row, lane.at, state)
    kept = len(state.done) - len(lane.state.done)
    if kept:
        lane.text += [token for block in state.done[:kept] for token in block]
        lane.upcoming = lane.next._replace(done=lane.next.done[kept:])


def _count(stats: RowStats, drafted: Sequence[State], moves: int) -> None:
    """Count one call: the upcoming state is no draft; α counts every drafted state, positions count depths."""
    depth = len({state.revealed for state in drafted}) - 1
    stats.count(depth, moves, 0)
    stats.drafted += len(drafted) - 1 - depth


def _finish(run: Run, outputs: dict[int, list[int]], emit: Emit | None) -> None:
    """Hand out what is new, and drop the rows whose upcoming state ends them."""
    run.stats.moments.append(time.perf_counter_ns())
    for lane in run.lanes:
        lane.stats.arrived.append(max(0, lane.next.start - len(lane.canvas.prompt)))
        if emit is not None or lane.next.ended:
            output = lane.output()
            if emit is not None and len(output) > lane.sent:
                emit(lane.index, output[lane.sent :])
                lane.sent = len(output)
            if lane.next.ended:
                outputs[lane.index] = output
                lane.stats.emitted = lane.stats.arrived[-1] = len(output)
    kept = [row for row, lane in enumerate(run.lanes) if not lane.next.ended]
    if len(kept) < len(run.lanes):
        run.lanes = [run.lanes[row] for row in kept]
        if kept:
            run.memory.keep_rows(kept)
            run.last = None if run.last is None else run.last.only(kept)
