"""What decoding a batch of utterances produced: tokens, the route each took, and counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from ssd_infer.engine.stats import RowStats
from ssd_infer.families.speech.greedy import Work

SILENCE, GATE, VERIFY, FALLBACK, PLAIN = "silence", "gate", "verify", "fallback", "plain"
ROUTES = (SILENCE, GATE, VERIFY, FALLBACK, PLAIN)
"""Nothing to hear · the CTC transcript as it stands · confirmed by the decoder · finished by it · no draft at all."""
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
    """What gate 1 looks at, in nats; None where there is no gate 1."""
    stats: RowStats = field(default_factory=RowStats)
    """Verify passes only: a transcript that passes gate 1 counts in neither α nor τ."""


@dataclass(slots=True)
class Timer:
    """Wall-clock seconds by phase."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time the block takes to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


@dataclass(slots=True)
class Decoded:
    """A decoded batch, rows in the order of the input, with the decoder's work and the time of each phase."""

    rows: list[RowResult]
    work: Work = field(default_factory=Work)
    timer: Timer = field(default_factory=Timer)

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Add the time the block takes to `phase`."""
        return self.timer.phase(phase)
