"""Share a time limit between the phases of an evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


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
