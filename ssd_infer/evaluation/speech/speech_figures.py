"""Sum up one decoder's runs: error rates, routes, acceptance, where the time went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ssd_infer.engine.stats import RowStats
from ssd_infer.evaluation.speech.contest import Benchmark, Run
from ssd_infer.families.speech.greedy import Work
from ssd_infer.families.speech.result import PHASES, RowResult
from ssd_infer.families.speech.scoring import auroc, characters, deciles, interval, total, words

Key = tuple[int, int, int]
"""(repeat, unit, row)"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything a row says of one contender at one batch size."""

    contest: Benchmark
    name: str
    processor: Any

    @property
    def runs(self) -> list[Run]:
        """Return the timed runs."""
        return self.contest.runs[self.name]

    def outputs(self) -> dict[Key, list[int]]:
        """Return the tokens of every (repeat, unit, row)."""
        return {
            (run.repeat, run.unit.index, row): result.tokens
            for run in self.runs
            for row, result in enumerate(run.decoded.rows)
        }

    def rows(self, task: str | None = None) -> list[tuple[str, RowResult]]:
        """Return transcript and result of every utterance of the first repeat."""
        return [
            (item.text, result)
            for run in self.runs
            if run.repeat == 0 and task in (None, run.unit.task)
            for item, result in zip(run.unit.items, run.decoded.rows, strict=True)
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

    def acceptance(self) -> RowStats:
        """Return the verify passes' counters, pooled over all runs."""
        pooled = RowStats()
        for run in self.runs:
            for row in run.decoded.rows:
                pooled.add(row.stats)
        return pooled

    def work(self) -> Work:
        """Return the decoder's passes over all runs."""
        done = Work()
        for run in self.runs:
            done.add(run.decoded.work)
        return done

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase over all runs."""
        return {name: sum(run.decoded.timer.seconds[name] for run in self.runs) for name in PHASES}

    def utterances(self) -> int:
        """Return how many recognitions were timed."""
        return sum(len(run.decoded.rows) for run in self.runs)

    def tokens(self) -> int:
        """Return the tokens of all runs, EOS excluded."""
        return sum(len(row.tokens) for run in self.runs for row in run.decoded.rows)

    def doubt(self, measure: str) -> dict[str, Any]:
        """Say how well gate 1's `measure` tells right drafts from wrong ones: AUROC, and deciles of both, in nats."""
        right: list[float] = []
        wrong: list[float] = []
        for text, row in self.rows():
            if row.entropy is not None and row.drafted:
                said = self.processor.decode(row.tokens) if row.tokens else ""
                (right if words([text], [said])[0].edits == 0 else wrong).append(row.entropy)
        found = {"auroc": auroc(right, wrong), "right": deciles(right), "wrong": deciles(wrong)}
        return {"measure": measure, **found}
