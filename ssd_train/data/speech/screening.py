"""Which utterances can be learned from: the others are counted by reason, and too many of them stop the run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ssd_infer.errors import DataError
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.models.asr_processor import unknown_characters
from ssd_infer.models.ctc_asr_config import encoder_lengths
from ssd_train.data.framing import plain_ids

logger = logging.getLogger(__name__)

LIMIT = 0.01
"""Largest share of utterances that may be left out; beyond it the run is refused."""
_SHOWN = 3


@dataclass(slots=True)
class Tally:
    """How many utterances came, and which were left out, why."""

    source: str
    seen: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def skip(self, reason: str, example: str) -> None:
        """Count one utterance that is left out; the first few are remembered."""
        self.reasons[reason] += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{example} ({reason})")

    @property
    def skipped(self) -> int:
        """Utterances left out."""
        return sum(self.reasons.values())

    def close(self) -> None:
        """Say what was left out; raise DataError when it was more than `LIMIT`, or everything."""
        if not self.skipped:
            return
        listed = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common())
        line = f"{self.source}: {self.skipped} of {self.seen} utterances cannot be used: {listed}"
        if self.skipped > LIMIT * self.seen:
            some = "; ".join(self.examples)
            raise DataError(
                f"{line}; at most {LIMIT:.0%} may be left out, so mend the data; for example: {some}"
            )
        logger.warning("%s", line)


@dataclass(frozen=True, slots=True)
class Screen:
    """The rules of one model: which characters it can write, and how many frames it makes of how much sound."""

    tokenizer: Any
    encoder: Any
    """Configuration of the encoder, for its subsampling."""
    hop: int
    """Samples between feature frames."""
    max_seconds: float
    rate: int

    def labels(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        return plain_ids(self.tokenizer, [text])[0]

    def problem(self, samples: int, text: str) -> str | None:
        """Return why `samples` of audio with `text` cannot be learned from, or None."""
        if not text.strip():
            return "without text"
        unknown = unknown_characters(text, self.tokenizer)
        if unknown:
            return f"with characters outside the vocabulary ({' '.join(unknown[:5])})"
        if samples > self.max_seconds * self.rate:
            return f"longer than data.max_seconds={self.max_seconds:g}"
        labels = self.labels(text)
        needed = len(labels) + sum(one == two for one, two in pairwise(labels))
        if encoder_lengths(self.encoder, 1 + samples // self.hop) < needed:
            return "with more text than their audio has frames"
        return None

    def keep(self, utterances: Iterable[Utterance], tally: Tally) -> Iterator[Utterance]:
        """Yield what can be learned from, in lower case and single spaces, and count the rest in `tally`."""
        for item in utterances:
            tally.seen += 1
            text = " ".join(item.text.lower().split())
            problem = self.problem(len(item.samples), text)
            if problem is None:
                yield replace(item, text=text)
            else:
                tally.skip(problem, item.name)
