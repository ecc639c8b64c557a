"""STEP: from a state and what the model says there to the next state, deterministic once the noise is fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ssd_infer.families.diffusion.noise import uniform
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.families.diffusion.state import Canvas, State

ANCESTRAL_STEPS, ANCESTRAL_END = 128, 1e-5
_ORDER_STREAM, _TIME_STREAM = 0x0D, 0x7E
"""Mixed into the seed, so that orders and times share no noise with tokens."""

Choice = tuple[int, int]
"""(a, t): take the a-th next position instead of the next, with its t-th best token; STEP itself is (0, 0)."""
STEP: Choice = (0, 0)


class Reading(NamedTuple):
    """What the model says of one state's active block; entries by offset, meaningless where nothing was asked."""

    tokens: list[int]
    """Chosen token: the most probable one, or the one with the largest perturbed logit."""
    scores: list[float]
    """What the order compares; for confidence log p/(1−p), which unlike p does not saturate at 1."""
    seconds: list[int]
    """Second choice; empty unless asked for."""
    margins: list[float]
    """Log-odds of the choice against the second choice; empty unless asked for."""


@dataclass(frozen=True, slots=True)
class Stepper:
    """Apply one sampler to states; holds no state of its own."""

    settings: SamplerSettings

    def needs(self, canvas: Canvas, state: State) -> list[int]:
        """Return the offsets whose reading decides the next step: all masked ones where they compete."""
        if self.settings.needs_scores:
            return canvas.masked(state)
        return self._known(canvas, state)[0]

    def step(self, canvas: Canvas, state: State, reading: Reading, choice: Choice = STEP) -> State:
        """Return the next state; another `choice` gives a state that a draft may guess instead."""
        picks, clock = self._picks(canvas, state, reading, choice[0])
        tokens = reading.tokens
        reveals = [(offset, tokens[offset]) for offset in picks]
        if choice[1] and reading.seconds:
            reveals[-1] = (picks[-1], reading.seconds[picks[-1]])
        return canvas.after(state, reveals, clock)

    @property
    def order_is_fixed(self) -> bool:
        """Tell whether exactly the next position from the left is revealed in every step."""
        chosen = self.settings
        return chosen.order == "left_to_right" and chosen.rule == "schedule" and chosen.steps is None

    def steps_per_block(self, canvas: Canvas) -> int:
        """Return S, the steps a full block takes."""
        if self.settings.steps is None:
            return canvas.width
        blocks = -(-(canvas.limit - len(canvas.prompt)) // canvas.width)  # as if no prompt ended inside one
        return max(1, self.settings.steps // blocks)

    def _picks(self, canvas: Canvas, state: State, reading: Reading, skip: int) -> tuple[list[int], int]:
        """Return the offsets to reveal, best first, and the clock after them; `skip` swaps the last for a later one."""
        if not self.settings.needs_scores:
            picks, clock = self._known(canvas, state, skip)
            return picks, clock
        scores = reading.scores
        ranked = sorted(canvas.masked(state), key=lambda offset: (-scores[offset], offset))
        if self.settings.rule == "threshold":
            count = sum(scores[offset] > self._log_odds for offset in ranked)
        else:
            count = self._count(canvas, state, len(ranked))
        return _swap(ranked, max(1, count), skip), state.clock + 1

    def _known(self, canvas: Canvas, state: State, skip: int = 0) -> tuple[list[int], int]:
        """Return offsets and clock of a step that needs no scores: the next from the left, or drawn."""
        masked = canvas.masked(state)
        if self.settings.rule == "ancestral":
            return self._ancestral(canvas, state, masked)
        if self.settings.order == "random":
            masked.sort(key=lambda offset: self._drawn(canvas, state, offset))
        return _swap(masked, self._count(canvas, state, len(masked)), skip), state.clock + 1

    def _count(self, canvas: Canvas, state: State, masked: int) -> int:
        """Return how many tokens this step reveals: floor(K/S), one more in the first K mod S steps (LLaDA)."""
        if self.settings.steps is None:
            return 1
        whole = masked + state.revealed_here(canvas)
        steps = min(self.steps_per_block(canvas), whole)
        return whole // steps + (state.clock < whole % steps)

    def _drawn(self, canvas: Canvas, state: State, offset: int) -> float:
        return uniform((canvas.seed ^ _ORDER_STREAM, state.revealed, state.start + offset))

    def _ancestral(self, canvas: Canvas, state: State, masked: list[int]) -> tuple[list[int], int]:
        """Return what the next time step with any change reveals; between them the model's answer is the same."""
        steps = self.settings.steps or ANCESTRAL_STEPS
        clock = state.clock
        while clock < steps:
            now, then = _time(clock, steps), _time(clock + 1, steps)
            seed = canvas.seed ^ _TIME_STREAM
            leaves = [o for o in masked if uniform((seed, clock, state.start + o)) * now < now - then]
            clock += 1
            if leaves:
                return leaves, clock
        return masked, clock

    @property
    def _log_odds(self) -> float:
        return math.log(self.settings.threshold / (1 - self.settings.threshold))


def _time(clock: int, steps: int) -> float:
    """Return t after `clock` of `steps` equal steps from 1 to nearly 0."""
    return 1 - (1 - ANCESTRAL_END) * clock / steps


def _swap(ranked: list[int], count: int, skip: int) -> list[int]:
    """Return the first `count` of `ranked`, the last of them replaced by the one `skip` places later, if there is."""
    picks = ranked[:count]
    if skip and count - 1 + skip < len(ranked):
        picks[-1] = ranked[count - 1 + skip]
    return picks
