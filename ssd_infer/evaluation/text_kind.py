"""What kinds of models that read token ids share in an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.kind import EvalKind, Row
from ssd_infer.evaluation.measure import Record
from ssd_infer.evaluation.setting import Section, Setting
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.evaluation.written import written
from ssd_infer.strategies.registry import basics
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline


class TextKind(EvalKind):
    """An evaluation on prompts, at one temperature after another."""

    context: EvalContext

    def __init__(self, context: EvalContext) -> None:
        """Evaluate what was opened."""
        self.context = context

    def setting(self, number: int, temperature: float, resolving: Deadline, measuring: Deadline) -> Setting:
        """Return the setting of one temperature; 0 is greedy."""
        settings, units = self.context.settings, self.context.units
        sampling = sampling_at(settings, temperature)
        said = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
        batch = settings.batch_size
        return Setting(number, said, sampling.suffix, units, batch, resolving, measuring, sampling)

    def absent(self, present: set[str]) -> list[Absent]:
        """Return strategies that have a row of greedy decoding alone."""
        reason = "greedy decoding was not part of this run"
        return [Absent(name, "not_applicable", reason) for name in basics() if name not in present]

    def texts(self, section: Section) -> dict[str, Row]:
        """Return a decoded text for rows that drafted, with who wrote each token."""
        names = [item.name for item in section.contenders if item.kind == "strategy" and not item.plain]
        return written(section.found, names, self.context.units, self.context.tokenizer)

    def protocol(self, sections: Sequence[Section]) -> Row:
        """Return prompts, sampling, and how the clock was read."""
        settings = self.context.settings
        return {
            "tasks": [
                {
                    "name": task.name,
                    "samples": len(task.prompts),
                    "prompt_tokens": max(map(len, task.prompts)),
                    "new_tokens": settings.max_new_tokens,
                    "extra": task.facts(),
                }
                for task in self.context.tasks
            ],
            "batch_size": settings.batch_size,
            "sampling": {
                "temperatures": list(settings.temperatures),
                "top_k": settings.top_k,
                "top_p": settings.top_p,
            },
            "repeats": settings.repeats,
            "timer": "time.perf_counter around the whole call, prefill included, device synchronised; "
            "contenders interleaved per prompt in rotating order, in blocks with an order of their own",
            "extra": {
                "rounds": [_rounds(section) for section in sections],
                "calibration_prompts": len(self.context.calibration),
                "seconds": round(self.context.budget.spent, 1),
            },
        }

    def sample(self, section: Section, name: str, record: Record) -> Row:
        """Return who decoded what in which time, with the acceptance histogram of each row."""
        del section
        stats = record.decoded.stats
        return {
            "name": name,
            "task": record.task,
            "unit": record.unit,
            "repeat": record.repeat,
            "tokens": record.decoded.tokens,
            "seconds": record.decoded.seconds,
            "accepted": None if stats is None else [row.histogram for row in stats.rows],
        }


def sampling_at(settings: EvalSettings, temperature: float) -> Sampling:
    """Return how tokens are chosen at a temperature of the settings."""
    if not temperature:
        return Sampling()
    return Sampling(float(temperature), settings.top_k, settings.top_p)


def _rounds(section: Section) -> dict[str, Any]:
    found = section.found
    return {
        "temperature": section.sampling.temperature,
        "done": found.rounds_done,
        "planned": found.rounds_planned,
        "new_tokens": found.new_tokens,
        "blocks": found.blocks,
        "seconds": round(found.seconds, 1),
    }
