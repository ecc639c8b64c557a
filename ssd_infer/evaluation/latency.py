"""When tokens reach whoever waits for them: time to the first, and between those that follow."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ssd_infer.engine.stats import Stats


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The moments at which one timed call had more tokens, in nanoseconds, and how many each row had by then."""

    begun: int
    moments: Sequence[int]
    rows: Sequence[Sequence[int]]
    """Of each row: its tokens at each moment, until it had ended."""

    def blocks(self, row: int) -> list[tuple[int, int]]:
        """Return, of each block of `row`, the moment it came at and the row's tokens from then on."""
        found: list[tuple[int, int]] = []
        for moment, count in zip(
            self.moments, self.rows[row], strict=False
        ):  # a row ends before the call does
            if count > (found[-1][1] if found else 0):
                found.append((moment, count))
        return found

    def first(self) -> list[float]:
        """Return the seconds from the call to each row's first token; none of a row without tokens."""
        blocks = [self.blocks(row) for row in range(len(self.rows))]
        return [(came[0][0] - self.begun) / 1e9 for came in blocks if came]

    def between(self) -> list[float]:
        """Return the seconds each token after the first block took: time since the block before ÷ tokens of its own."""
        found: list[float] = []
        for row in range(len(self.rows)):
            for (then, before), (now, count) in pairwise(self.blocks(row)):
                found += [(now - then) / 1e9 / (count - before)] * (count - before)
        return found


@dataclass(slots=True)
class Listener:
    """A transformers streamer that notes when tokens came; on a CPU that costs nothing worth a row."""

    moments: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Tokens a row had at each moment; the prompt is the first and counts none."""

    def put(self, value: Any) -> None:
        """Note a block: `(B,)` is a token a row, `(1, n)` are several of one; the first call brings the prompt."""
        if not self.counts:
            self.counts.append(0)
        else:
            self.counts.append(self.counts[-1] + (value.shape[1] if value.dim() > 1 else 1))
        self.moments.append(time.perf_counter_ns())

    def end(self) -> None:
        """Take note of nothing more."""

    def forget(self) -> None:
        """Begin anew."""
        self.moments, self.counts = [], []

    def heard(self, begun: int, tokens: Sequence[Sequence[int]]) -> Arrivals | None:
        """Return when the `tokens` of each row came, nothing past their end counted; None where nobody spoke."""
        if not self.moments:
            return None
        rows = [[min(count, len(row)) for count in self.counts] for row in tokens]
        return Arrivals(begun, self.moments, rows)


def of_stats(begun: int, stats: Stats | None) -> Arrivals | None:
    """Return what our own engine noted; None where it did not run, or a loop of its own noted nothing."""
    if stats is None or not stats.moments:
        return None
    return Arrivals(begun, stats.moments, [row.arrived for row in stats.rows])


def latency(calls: Iterable[Arrivals | None]) -> dict[str, float] | None:
    """Return TTFT and ITL of timed calls in milliseconds; None where nobody noted when tokens came.

    TTFT is the median over rows and calls. ITL is None where every output came in one block.
    """
    known = [call for call in calls if call is not None]
    first = sorted(seconds for call in known for seconds in call.first())
    if not first:
        return None
    between = sorted(seconds for call in known for seconds in call.between())
    return {
        "ttft_ms": 1e3 * quantile(first, 0.5),
        **(
            {"itl_ms_p50": 1e3 * quantile(between, 0.5), "itl_ms_p95": 1e3 * quantile(between, 0.95)}
            if between
            else {}
        ),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the `ordered` values that at least `share` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
