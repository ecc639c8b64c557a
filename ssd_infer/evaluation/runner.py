"""The story of one evaluation: load → prompts → quality → calibrate → time and judge → report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ssd_infer.checkpoint.provenance import environment, identity
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus import held_out_ids
from ssd_infer.engine.target import Target
from ssd_infer.evaluation import report_folder
from ssd_infer.evaluation.bench import EvalContext, Say, open_context, torch_threads, vocab_size
from ssd_infer.evaluation.carried import carry
from ssd_infer.evaluation.progress import quiet_libraries
from ssd_infer.evaluation.quality import exit_quality
from ssd_infer.evaluation.section import Section, judge, rows, run_section
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.evaluation.studies import Findings, Round, listed_rows
from ssd_infer.evaluation.summary import absent_row
from ssd_infer.evaluation.verdict import verdict
from ssd_infer.evaluation.vocabulary import check_ids
from ssd_infer.evaluation.written import written
from ssd_infer.report.schema import SCHEMA_VERSION
from ssd_infer.report.write import check_writable, write_report, writing
from ssd_infer.strategies.registry import basics
from ssd_infer.strategies.study import Sampling, When
from ssd_infer.tuning.budget import Deadline, deal

logger = logging.getLogger(__name__)

QUALITY_TOKENS, QUALITY_WINDOW = 8192, 256
CALIBRATION_SHARE = 0.6
"""Share of the time up to the end of the first choice of parameters that calibrations at the start may take."""


def evaluate(settings: EvalSettings, say: Say | None = None) -> dict[str, Any]:
    """Measure every strategy on `settings.checkpoint`, write the report files, and return the report.

    `say` receives one line a phase (None: the log does). Raises SSDError when the checkpoint, the prompts or the
    place of the report are unusable; a strategy that fails is a row with its reason.
    """
    folder = report_folder(settings)
    check_writable("out", folder)
    with torch_threads(settings.threads), quiet_libraries():
        bench = open_context(settings, say or logger.info)
        ends = deal([not t for t in settings.temperatures], bool(settings.contexts), bool(bench.shift))
        moments = {phase: bench.budget.deadline(share) for phase, share in ends.items()}
        quality = _quality(bench, moments["quality"])
        studied = _studied(bench, moments)
        sections = _sections(bench, moments)
        report = assemble(bench, sections, quality, studied)
    with writing("out", folder):
        write_report(report, folder, list(samples(sections)))
    return report


def assemble(
    bench: EvalContext,
    sections: list[Section],
    quality: dict[str, Any],
    studied: Sequence[Findings] = (),
) -> dict[str, Any]:
    """Put the report together; every strategy name has a row, and what was `studied` at the start is added to it."""
    baselines: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    strategies: list[dict[str, Any]] = []
    for section in sections:
        for rows_of_report, found in zip((baselines, peers, strategies), rows(section), strict=True):
            rows_of_report.extend(found)
    present = {row["name"] for row in strategies}
    strategies += [
        absent_row(Absent(name, "not_applicable", "greedy decoding was not part of this run"))
        for name in basics()
        if name not in present
    ]
    for row in strategies:
        for findings in studied:
            findings.attach(row)
    for section in sections:
        names = [item.name for item in section.contenders if item.kind == "strategy" and not item.plain]
        texts = written(section.found, names, bench.units, bench.tokenizer)
        for row in strategies:
            if row["name"] in texts:
                row["extra"]["stream"] = texts[row["name"]]
    bench.notes += carry(strategies)
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": identity(bench.settings.checkpoint, bench.settings.loading()),
        "environment": environment(bench.settings.seed, bench.device, bench.dtype),
        "protocol": _protocol(bench, sections),
        "baselines": baselines,
        "peers": peers,
        "strategies": strategies,
        "quality": quality,
        "verdict": verdict(strategies, peers, bench.notes),
    }


def _sections(bench: EvalContext, moments: Mapping[str, Deadline]) -> list[Section]:
    """Resolve, time and judge every setting, each phase done by its moment, lest the first spend the whole limit."""
    settings = bench.settings
    sections = []
    for number, t in enumerate(settings.temperatures):
        sampling = Sampling(float(t), settings.top_k, settings.top_p) if t else Sampling()
        section = run_section(bench, sampling, moments[f"prepare {number}"], moments[f"measure {number}"])
        judge(bench, section, moments[f"law {number}"])
        _streams(bench, section, moments[f"streams {number}"])
        sections.append(section)
    return sections


def _studied(bench: EvalContext, moments: Mapping[str, Deadline]) -> list[Findings]:
    """Let strategies study before any parameters are chosen: of themselves, then at long contexts if asked for."""
    moments_asked: list[When] = ["start", "contexts"] if bench.settings.contexts else ["start"]
    found = []
    for when in moments_asked:
        studying = Round(bench, when, Sampling(), moments[when], moments["prepare 0"].part(CALIBRATION_SHARE))
        found.append(studying.run(listed_rows(bench, Sampling())))
    return found


def _streams(bench: EvalContext, section: Section, deadline: Deadline) -> None:
    """Let strategies decode the streams of task_shift where they were asked for."""
    if bench.shift:
        bench.say("decoding streams whose text changes")
        studying = Round(bench, "streams", section.sampling, deadline, deadline)
        section.learn(studying.run(listed_rows(bench, section.sampling)))


def _quality(bench: EvalContext, deadline: Deadline) -> dict[str, Any]:
    if not isinstance(bench.target, Target):
        return {"exits": [], "reason": bench.target}
    bench.say("measuring loss and agreement of every exit")
    source, windows = held_out_ids(bench.tasks, bench.tokenizer, QUALITY_TOKENS, QUALITY_WINDOW)
    check_ids(source, windows, vocab_size(bench.model))
    return exit_quality(bench.target, windows, source, deadline)


def _protocol(bench: EvalContext, sections: list[Section]) -> dict[str, Any]:
    settings = bench.settings
    return {
        "tasks": [
            {
                "name": task.name,
                "samples": len(task.prompts),
                "prompt_tokens": max(map(len, task.prompts)),
                "new_tokens": settings.max_new_tokens,
                "extra": {"prompts_sha256": task.sha256},
            }
            for task in bench.tasks
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
            "rounds": [
                {
                    "temperature": section.sampling.temperature,
                    "done": section.found.rounds_done,
                    "planned": section.found.rounds_planned,
                    "new_tokens": section.found.new_tokens,
                    "blocks": section.found.blocks,
                    "seconds": round(section.found.seconds, 1),
                }
                for section in sections
            ],
            "calibration_prompts": len(bench.calibration),
            "seconds": round(bench.budget.spent, 1),
        },
    }


def samples(sections: list[Section]) -> Iterator[dict[str, Any]]:
    """Yield one object a timed call: who decoded what in which time, with its acceptance histogram."""
    for section in sections:
        for name, records in section.found.records.items():
            for record in records:
                stats = record.decoded.stats
                yield {
                    "name": name,
                    "task": record.task,
                    "unit": record.unit,
                    "repeat": record.repeat,
                    "tokens": record.decoded.tokens,
                    "seconds": record.decoded.seconds,
                    "accepted": None if stats is None else [row.histogram for row in stats.rows],
                }
