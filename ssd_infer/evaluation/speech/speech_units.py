"""What is timed of speech: batches of utterances, whole recognitions of them, features and encoder included."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ssd_infer.engine.clock import synchronise
from ssd_infer.engine.stats import Stats, TotalStats
from ssd_infer.evaluation.contenders import Decode
from ssd_infer.evaluation.measure import Record, Unit
from ssd_infer.families.speech.encoding import batches
from ssd_infer.families.speech.result import Decoded
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.strategies.speech_strategy import SpeechDraft, SpeechStrategy


@dataclass(frozen=True, slots=True)
class SpeechUnit(Unit):
    """Utterances of one set that are decoded together; `prompts` are their samples."""

    items: list[Utterance]
    places: list[int]
    """Their places in the set."""

    def milliseconds(self, rate: int) -> int:
        """Return the length of the audio."""
        return round(1000 * sum(len(item.samples) for item in self.items) / rate)


@dataclass(slots=True)
class SpeechStats(Stats):
    """Statistics of one recognition, with everything its decoder said, and processor seconds."""

    decoded: Decoded | None = None
    cpu: float = 0.0


def cut_units(sets: dict[str, list[Utterance]], size: int) -> list[SpeechUnit]:
    """Cut every set into batches of like length and take turns between sets, so that an early stop is balanced."""
    queues = []
    for name, items in sets.items():
        cut = batches([len(item.samples) for item in items], size)
        queues.append([(name, [items[place] for place in batch], batch) for batch in cut])
    longest = max(map(len, queues))
    ordered = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return [
        SpeechUnit(index, name, [item.samples for item in items], items, places)
        for index, (name, items, places) in enumerate(ordered)
    ]


def recognising(
    strategy: type[SpeechStrategy], model: Any, processor: Any, draft: SpeechDraft | None
) -> Decode:
    """Return a function that recognises samples with a draft, or plainly for None; its limit is the audio's own."""

    def decode(waves: Sequence[Tensor], _most: int, _seed: int) -> tuple[list[list[int]], Stats]:
        start = time.process_time()
        decoded = strategy.recognise(model, processor, waves, draft)
        synchronise(model.device)
        return [row.tokens for row in decoded.rows], counted(decoded, time.process_time() - start)

    return decode


def counted(decoded: Decoded, cpu: float) -> SpeechStats:
    """Return the counters of verify passes, the decoder's forwards and the seconds of each phase."""
    stats = SpeechStats(TotalStats(), [row.stats for row in decoded.rows], decoded=decoded, cpu=cpu)
    stats.finish()
    stats.total.forwards = {"target": decoded.work.forwards, "draft": 1}
    stats.total.seconds = dict(decoded.timer.seconds)
    return stats


def said(record: Record) -> tuple[Decoded, float]:
    """Return what the decoder of a timed recognition said, and its processor seconds."""
    stats = record.decoded.stats
    assert isinstance(stats, SpeechStats)
    assert stats.decoded is not None
    return stats.decoded, stats.cpu
