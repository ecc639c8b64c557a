"""Sum up one decoder's recognitions: error rates, routes, where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssd_infer.evaluation.measure import Measurements, Record
from ssd_infer.evaluation.speech.speech_units import SpeechUnit, said
from ssd_infer.families.speech.greedy import Work
from ssd_infer.families.speech.result import PHASES, RowResult
from ssd_infer.families.speech.scoring import auroc, characters, deciles, interval, total, words


@dataclass(frozen=True, slots=True)
class Figures:
    """What a row says of one contender at one batch size, beside speed and acceptance."""

    found: Measurements
    name: str
    units: Mapping[int, SpeechUnit]
    """By index."""
    processor: Any

    @property
    def records(self) -> list[Record]:
        """Return the timed recognitions."""
        return self.found.of(self.name)

    def rows(self, task: str | None = None) -> list[tuple[str, RowResult]]:
        """Return transcript and result of every utterance of the first repeat."""
        return [
            (item.text, result)
            for record in self.found.of(self.name, task)
            if record.repeat == 0
            for item, result in zip(self.units[record.unit].items, said(record)[0].rows, strict=True)
        ]

    def quality(self, task: str | None = None) -> dict[str, Any]:
        """Return WER with its interval, CER, and how many utterances they stand on."""
        rows = self.rows(task)
        references = [text for text, _ in rows]
        texts = [self.processor.decode(row.tokens) if row.tokens else "" for _, row in rows]
        found = words(references, texts)
        return {
            "wer": total(found).rate,
            "wer_ci95": interval(found),
            "cer": total(characters(references, texts)).rate,
            "utterances": len(rows),
            "words": total(found).units,
        }

    def routes(self) -> dict[str, float]:
        """Return the share of utterances that took each route; they sum to 1."""
        counts = Counter(row.route for _, row in self.rows())
        return {route: count / sum(counts.values()) for route, count in sorted(counts.items())}

    def kept(self) -> float | None:
        """Return kept ÷ drafted tokens of the utterances that fell back; None without any."""
        fallen = [row for _, row in self.rows() if row.route == "fallback" and row.drafted]
        return sum(row.kept for row in fallen) / sum(row.drafted for row in fallen) if fallen else None

    def work(self) -> Work:
        """Return the decoder's passes over all recognitions."""
        done = Work()
        for record in self.records:
            done.add(said(record)[0].work)
        return done

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase over all recognitions."""
        timers = [said(record)[0].timer.seconds for record in self.records]
        return {name: sum(seconds[name] for seconds in timers) for name in PHASES}

    def utterances(self) -> int:
        """Return how many recognitions were timed."""
        return sum(len(record.decoded.tokens) for record in self.records)

    def doubt(self, measure: str) -> dict[str, Any]:
        """Say how well a `measure` of doubt tells right drafts from wrong ones: AUROC, and deciles of both, in nats."""
        right: list[float] = []
        wrong: list[float] = []
        for text, row in self.rows():
            if row.entropy is not None and row.drafted:
                heard = self.processor.decode(row.tokens) if row.tokens else ""
                (right if words([text], [heard])[0].edits == 0 else wrong).append(row.entropy)
        found = {"auroc": auroc(right, wrong), "right": deciles(right), "wrong": deciles(wrong)}
        return {"measure": measure, **found}
