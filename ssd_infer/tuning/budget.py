"""Share a time limit between the phases of an evaluation, beforehand, and stop each phase at its moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

OPENING, QUALITY, START, PREPARING, LAW, CLOSING = 0.03, 0.02, 0.06, 0.16, 0.08, 0.03
"""Shares of the limit for loading, the quality of exits, studies at the start, the choice of parameters, tests of the
sampled law, and writing. Everything else, above 60 %, goes to measuring."""
CONTEXTS, STREAMS = 0.4, 0.1
"""Shares of the measuring time: studies at long contexts, and along the streams of task_shift, where asked for."""


class OutOfTime(Exception):  # noqa: N818  it is no error: the phase had its share
    """The share of the time limit that a phase was given is over."""


class Budget:
    """A total of minutes counted from construction; 0 or less means no limit."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start counting now."""
        self._clock = clock
        self._start = clock()
        self.seconds = minutes * 60 if minutes > 0 else math.inf

    def deadline(self, share: float) -> Deadline:
        """Return the moment at which `share` of the whole budget is spent."""
        return Deadline(self._start + share * self.seconds, self._clock)

    @property
    def spent(self) -> float:
        """Seconds since construction."""
        return self._clock() - self._start


class Deadline:
    """A moment that passes."""

    def __init__(self, moment: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Pass at `moment` of `clock`."""
        self._moment, self._clock = moment, clock

    @property
    def passed(self) -> bool:
        """Tell whether it is time to stop."""
        return self._clock() >= self._moment

    @property
    def left(self) -> float:
        """Seconds until then; infinite without a limit, 0 once it has passed."""
        return max(0.0, self._moment - self._clock())

    def part(self, share: float) -> Deadline:
        """Return the moment at which `share` of what is left now is spent; never, without a limit."""
        if math.isinf(self._moment):
            return self
        return Deadline(self._clock() + share * self.left, self._clock)


def deal(greedy: Sequence[bool], contexts: bool = False, streams: bool = False) -> dict[str, float]:
    """Return phase → share of the limit by which it is done, in order; each phase may begin early, none ends late.

    `greedy` tells for every setting whether it decodes greedily, which needs no test of a sampled law. Phases of
    setting n are called `prepare n`, `measure n`, `law n` and `streams n`.
    """
    count, sampled = len(greedy), [not plain for plain in greedy]
    law = LAW * min(1, sum(sampled))
    measuring = 1.0 - OPENING - QUALITY - START - PREPARING - law - CLOSING
    long, streamed = measuring * CONTEXTS * contexts, measuring * STREAMS * streams
    parts = {"opening": OPENING, "quality": QUALITY, "start": START, "contexts": long}
    for number, draws in enumerate(sampled):
        parts[f"prepare {number}"] = PREPARING / count
        parts[f"measure {number}"] = (measuring - long - streamed) / count
        parts[f"law {number}"] = law * draws / max(1, sum(sampled))
        parts[f"streams {number}"] = streamed / count
    ends, total = {}, 0.0
    for phase, share in parts.items():
        total += share
        ends[phase] = total
    return ends


@contextmanager
def stopping(model: Any, deadline: Deadline) -> Iterator[None]:
    """Raise OutOfTime inside the block at the first pass of `model` that would begin after `deadline`.

    Calibrations and searches know no clock of ours; every pass they make begins with the embedding, so that is where
    it is looked at. Without a limit nothing is hooked.
    """
    if math.isinf(deadline.left):
        yield
        return

    def look(*_: Any) -> None:
        if deadline.passed:
            raise OutOfTime

    hook = model.get_input_embeddings().register_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()
