"""The cost model: v(r), the time of a call with r states against one with a single state, and what a draft is worth.

τ = 1 + Σ_{k=1..γ} Π_{i≤k} p_i        speedup = τ / (n_draft·c + v(γ+1))        (specs/diffusion.md, 3.5)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssd_infer.engine.clock import synchronise
from ssd_infer.families.diffusion.memory import Memory
from ssd_infer.families.diffusion.state import Canvas, State
from ssd_infer.tuning.costs import Curve
from ssd_infer.tuning.rounds import expected_tokens

REPEATS = 7


@dataclass(frozen=True, slots=True)
class CallCosts:
    """Median seconds of a call by its number of states, at one batch size and prefix length."""

    states: tuple[int, ...]
    seconds: tuple[float, ...]
    batch: int = 1

    def v(self, count: float) -> float:
        """Return the ratio of an r-state call to a single-state call, between and beyond the measured numbers too."""
        return Curve(self.states, self.seconds, steep=True)(count) / self.seconds[0]

    def curve(self) -> list[dict[str, float]]:
        """Return the measured points for a report."""
        return [
            {"states": count, "v": seconds / self.seconds[0], "milliseconds": seconds * 1e3}
            for count, seconds in zip(self.states, self.seconds, strict=True)
        ]


def predicted_speedup(
    acceptance: Sequence[float], costs: CallCosts, draft_calls: int = 0, c: float = 1.0
) -> float:
    """Return the speedup of a chain of γ = len(acceptance) drafts over stepwise decoding."""
    return expected_tokens(acceptance) / (draft_calls * c + costs.v(len(acceptance) + 1))


@torch.inference_mode()
def measure_calls(memory: Memory, counts: Sequence[int], repeats: int = REPEATS) -> CallCosts:
    """Time calls of `counts` states a row, in turn, on the block behind the prompts; `memory` must be fresh."""
    device = memory.denoiser.device
    firsts = [canvas.first() for canvas in memory.canvases]
    memory.evaluate([[state] for state in firsts])
    kept = [memory.keep(row, 0, state) for row, state in enumerate(firsts)]
    memory.finish_round()
    lists = {
        count: [_different(canvas, state, count) for canvas, state in zip(memory.canvases, kept, strict=True)]
        for count in sorted(set(counts))
    }
    seconds: dict[int, list[float]] = {count: [] for count in lists}
    for turn in range(repeats + 1):
        for count, states in lists.items():
            synchronise(device)
            start = time.perf_counter()
            memory.evaluate(states)
            synchronise(device)
            if turn:
                seconds[count].append(time.perf_counter() - start)
    medians = tuple(statistics.median(found) for found in seconds.values())
    return CallCosts(tuple(seconds), medians, len(memory.canvases))


def _different(canvas: Canvas, state: State, count: int) -> list[State]:
    """Return `count` different states, each with one position of the active block revealed."""
    places = canvas.masked(state)
    ids = [token for token in range(canvas.mask + 1 + count) if token != canvas.mask]
    found = []
    for index in range(count):
        tokens = list(state.tokens)
        tokens[places[index % len(places)]] = ids[index // len(places)]
        found.append(state._replace(tokens=tuple(tokens)))
    return found
