"""What decoding a batch of utterances produced: tokens, the route each took, and counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ssd_infer.engine.stats import RowStats
from ssd_infer.speech.greedy import Work

GATE, VERIFY, FALLBACK, PLAIN = "gate", "verify", "fallback", "plain"
ROUTES = (GATE, VERIFY, FALLBACK, PLAIN)
"""The CTC transcript as it stands · confirmed by the decoder · finished by the decoder · no draft at all."""
PHASES = ("features", "encode", "ctc", "verify", "fallback")


@dataclass(slots=True)
class RowResult:
    """One utterance: its tokens without EOS, how they came about, and what drafting counted."""

    tokens: list[int] = field(default_factory=list)
    route: str = PLAIN
    kept: int = 0
    """Draft tokens at the start that were kept."""
    drafted: int = 0
    """Length of the CTC transcript, whether or not it was verified."""
    entropy: float | None = None
    """What gate 1 looked at, in nats."""
    stats: RowStats = field(default_factory=RowStats)
    """Verify passes only: a transcript that passes gate 1 counts in neither α nor τ."""


@dataclass(slots=True)
class Decoded:
    """A decoded batch, rows in the order of the input; `seconds` by phase, `work` of the decoder."""

    rows: list[RowResult]
    work: Work = field(default_factory=Work)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time the block takes to `phase`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start
