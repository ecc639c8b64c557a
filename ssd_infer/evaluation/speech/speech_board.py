"""Recognitions at one batch size against plain decoding: speed compares times for the same audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssd_infer.evaluation.bootstrap import Totals, speed_ratio
from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.cost_model import Cost
from ssd_infer.evaluation.losslessness import LosslessResult, judge_greedy
from ssd_infer.evaluation.measure import Record
from ssd_infer.evaluation.speech.speech_figures import Figures
from ssd_infer.evaluation.speech.speech_units import SpeechUnit, said
from ssd_infer.evaluation.summary import Scoreboard


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechBoard(Scoreboard):
    """The recognitions at one batch size, divided by plain decoding at the same batch size."""

    units: Mapping[int, SpeechUnit]
    """By index."""
    processor: Any
    sampling_rate: int
    """Samples a second."""
    size: int
    """Utterances decoded together."""

    def amounts(self, name: str, task: str | None = None) -> list[Totals]:
        """Return milliseconds of audio and wall-clock seconds, by unit and block."""
        return self.found.totals(name, task, self._audio_and_wall)

    def figures(self, name: str) -> Figures:
        """Return the figures of one contender."""
        return Figures(self.found, name, self.units, self.processor)

    def equality(self, name: str) -> LosslessResult:
        """Compare every output with plain decoding's."""
        return judge_greedy(self.found.outputs(name), {self.plain: self.found.outputs(self.plain)})

    def rtfx(self, name: str, task: str | None = None) -> float:
        """Return seconds of audio recognised a second."""
        totals = self.amounts(name, task)
        return sum(part.tokens for part in totals) / 1000 / sum(part.seconds for part in totals)

    def step_seconds(self) -> float:
        """Return the seconds of one step of plain decoding."""
        plain = self.figures(self.plain)
        return plain.seconds()["fallback"] / max(1, plain.work().forwards)

    def speech(self, name: str) -> dict[str, Any]:
        """Return what a row's `extra.speech` says."""
        mine = self.figures(name)
        seconds = mine.seconds()
        encoder, spent = seconds["features"] + seconds["encode"], sum(seconds.values())
        return {
            **mine.quality(),
            "batch_size": self.size,
            "sets": [{"name": task, **mine.quality(task)} for task in self.found.tasks()],
            "rtfx": self.rtfx(name),
            "routes": mine.routes(),
            "kept_prefix": mine.kept(),
            "exact_match": self.equality(name).extra.get("exact_match"),
            "encoder_share": encoder / spent if spent else None,
            "decoder_forwards": mine.work().forwards / mine.utterances(),
            "decoder_positions": mine.work().positions / mine.utterances(),
            "cpu_speedup": self._cpu_speedup(name),
            "seconds": seconds,
        }

    def cost(self, name: str) -> Cost:
        """Return c and v in plain steps: of drafting a recognition, and of one verify pass, audio keys included."""
        mine = self.figures(name)
        seconds, passes, step = mine.seconds(), mine.work().verifies, self.step_seconds()
        verify = seconds["verify"] / passes / step if passes else None
        return Cost(seconds["ctc"] / len(mine.records) / step, verify)

    def predicted(self, name: str) -> float | None:
        """Predict the speedup from counted passes and the row's own c and v: t_AR ÷ (t_enc + c + passes·v + steps)."""
        mine, plain, step = self.figures(name), self.figures(self.plain), self.step_seconds()
        share = mine.utterances() / plain.utterances()
        encoder = (plain.seconds()["features"] + plain.seconds()["encode"]) * share
        steps = mine.work().forwards - mine.work().verifies
        ours = encoder + mine.seconds()["ctc"] + mine.seconds()["verify"] + steps * step
        theirs = encoder + plain.work().forwards * share * step
        return theirs / ours if ours > 0 else None

    def baseline_facts(self, name: str) -> dict[str, Any]:
        """Return what the row of plain decoding tells under `extra`."""
        return {"speech": self.speech(name), "fastest": True}

    def peer_facts(self, contender: Contender) -> dict[str, Any]:
        """Return what a reference's row tells under `extra`."""
        return {"speech": self.speech(contender.name)}

    def strategy_facts(self, contender: Contender, name: str) -> dict[str, Any]:
        """Return what a draft's row tells under `extra`; its kind and its strategy add the rest."""
        return {
            "draft": contender.draft,
            "repetition": self.repetition(name),
            "fell_back_to_plain": False,
            "noise": self.noise,
            "seconds": self.figures(name).seconds(),
        }

    def task_facts(self, name: str, task: str) -> dict[str, Any]:
        """Return error rates and real-time factor of one set."""
        return {**self.figures(name).quality(task), "rtfx": self.rtfx(name, task)}

    def _audio_and_wall(self, record: Record) -> tuple[int, float]:
        return self.units[record.unit].milliseconds(self.sampling_rate), record.decoded.seconds

    def _audio_and_cpu(self, record: Record) -> tuple[int, float]:
        return self.units[record.unit].milliseconds(self.sampling_rate), said(record)[1]

    def _cpu_speedup(self, name: str) -> float:
        """Return the speedup by processor seconds."""
        mine, plain = (self.found.totals(who, None, self._audio_and_cpu) for who in (name, self.plain))
        return speed_ratio(mine, plain, self.seed).value
