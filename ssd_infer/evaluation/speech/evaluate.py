"""The story of one evaluation of a speech checkpoint: load → calibrate → time at batch 1 and 8 → report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ssd_infer.checkpoint.provenance import environment, identity
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation.bench import torch_threads
from ssd_infer.evaluation.carried import show
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.progress import quiet_libraries
from ssd_infer.evaluation.speech.batches import exact_in_batches
from ssd_infer.evaluation.speech.contest import Benchmark, Contender, cut_units, hold
from ssd_infer.evaluation.speech.speech_rows import (
    AGAIN,
    LOSSLESS,
    PLAIN,
    Board,
    baseline_row,
    peer_row,
    strategy_row,
)
from ssd_infer.evaluation.speech.trial import Say, Trial, measure_costs, open_trial, prompts_sha256
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.evaluation.summary import absent_row
from ssd_infer.evaluation.verdict import verdict
from ssd_infer.report.schema import SCHEMA_VERSION
from ssd_infer.report.write import check_writable, write_report, writing
from ssd_infer.strategies.ctc_draft.ctc_params import AUTO, REFERENCES, VARIANTS, canonical, parse
from ssd_infer.strategies.ctc_draft.gate_calibration import PAPER_INCREASE, Calibration, Point, calibrate
from ssd_infer.strategies.ctc_draft.saved_thresholds import save_thresholds
from ssd_infer.strategies.ctc_draft.speech_report import speech_tables
from ssd_infer.strategies.ctc_draft.wer_report import wer_plots
from ssd_infer.strategies.registry import basics

logger = logging.getLogger(__name__)

SAME_WER = "ctc_draft:same_wer"
"""The two gates at the fastest setting whose word error rate on the dev set is not above plain decoding's."""
BEST_WER = "ctc_draft:best_wer"
"""The two gates at the setting of lowest word error rate on the dev set."""
BATCHES = (1, 8)
FIRST_SHARE, LAST_SHARE = 0.55, 0.95
"""Shares of the time limit after which batch size 1, and everything, must be done."""
TAKES_TEXT = "it drafts for models that take text, and this checkpoint takes audio"
NO_GENERATE = (
    "the model class has no transformers generate: its plain decoding is this toolkit's loop with a "
    "key/value cache"
)


def evaluate(settings: EvalSettings, say: Say | None = None) -> dict[str, Any]:
    """Measure every decoder on the held-out speech of `settings.checkpoint`, write the report files, return the report.

    The thresholds found are saved beside the checkpoint, for every later `auto`. Raises SSDError when the checkpoint,
    its speech or the place of the report are unusable; a decoder that fails is a row with its reason.
    """
    folder = Path(settings.out) if settings.out else Path(settings.checkpoint) / "report"
    check_writable("out", folder)
    with torch_threads(settings.threads), quiet_libraries():
        trial = open_trial(settings, say or logger.info)
        trial.say("choosing thresholds on the dev set")
        found = calibrate(trial.model, trial.processor, trial.dev, measure_costs(trial))
        contenders = select_candidates(trial, found)
        contests = _contests(trial, contenders)
        lossless = [item for item in contests[0].contenders if item.name == LOSSLESS]
        report = assemble(trial, contests, found, exact_in_batches(trial, lossless))
    with writing("out", folder):
        write_report(report, folder, list(_samples(contests)))
    _remember(trial, found)
    return report


@dataclass(slots=True)
class Heat:
    """One batch size: who ran, and the runs."""

    contenders: list[Contender]
    contest: Benchmark


def select_candidates(trial: Trial, found: Calibration) -> list[Contender]:
    """Return everybody who decodes: plain first, then the drafts asked for, then the references."""
    wanted = canonical(trial.settings.draft)
    given = dict(trial.settings.draft_params) if wanted != "all" else {}
    paper, same = _thresholds(found.fastest(PAPER_INCREASE)), _thresholds(found.fastest(0.0))
    best = _thresholds(found.most_accurate())
    contenders = [Contender(PLAIN, "baseline", None), Contender(AGAIN, "again", None)]
    contenders += [
        _contender(name, name, paper, given, trial) for name in VARIANTS if wanted in ("all", name)
    ]
    if wanted == "all":
        contenders.append(_contender(SAME_WER, "ctc_draft", same, given, trial))
        contenders.append(_contender(BEST_WER, "ctc_draft", best, given, trial))
    contenders += [
        Contender(name, "peer", name, parse(name, given if name == wanted else {}, trial.vocab_size))
        for name in REFERENCES
    ]
    return contenders


def assemble(
    trial: Trial, heats: list[Heat], found: Calibration, exact: Mapping[str, LosslessResult]
) -> dict[str, Any]:
    """Put the report together; every strategy name has a row.

    `exact` holds what decodings beside the timed ones found, by name.
    """
    baselines: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    strategies: list[dict[str, Any]] = []
    for number, heat in enumerate(heats):
        suffix = f":b{heat.contest.size}" if number else ""
        board = Board(heat.contest, trial.processor, trial.vocab_size, trial.settings.seed, suffix)
        for item in heat.contenders:
            if item.kind in ("baseline", "again"):
                baselines.append(baseline_row(item, board))
            elif item.kind == "peer":
                peers.append(peer_row(item, board))
            elif item.failure is not None or heat.contenders[0].failure is not None:
                reason = item.failure or "no plain decoding ran"
                failed = Absent(item.name + suffix, "failed", reason)
                strategies.append(absent_row(failed, claimed=item.name == LOSSLESS))
            else:
                strategies.append(strategy_row(item, board, _more(item, board, found), exact.get(item.name)))
    peers.append(_no_generate())
    strategies += _absent({row["name"] for row in strategies}, trial.settings.draft)
    for row in (*baselines, *strategies, *peers):
        show(row, speech_tables(row), wer_plots(row))
    notes = [*trial.notes, *(note for note in (found.undertrained, found.uncertain) if note)]
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": identity(trial.settings.checkpoint),
        "environment": environment(trial.settings.seed, trial.model.device, trial.model.dtype),
        "protocol": _protocol(trial, heats),
        "baselines": baselines,
        "peers": peers,
        "strategies": strategies,
        "quality": {"exits": [], "reason": "error rates of every decoder stand under Speech"},
        "verdict": conclude(strategies, baselines, notes),
    }


def conclude(
    strategies: list[dict[str, Any]], baselines: list[dict[str, Any]], notes: list[str]
) -> dict[str, Any]:
    """Return the verdict: only what promises unchanged output can win, at the first batch size.

    The two gates stand beside it with their word error rate.
    """
    promised = [row for row in strategies if row["lossless"]["claimed"] and ":b" not in row["name"]]
    found = verdict(promised, [], notes)
    plain = baselines[0]["extra"].get("speech", {}).get("wer")
    said = [
        f"{row['name']} decodes {row['speed']['speedup']:.2f} times as fast at a word error rate of "
        f"{100 * row['extra']['speech']['wer']:.2f} %"
        for row in strategies
        if row["name"] in ("ctc_draft", SAME_WER) and row["status"] == "ok"
    ]
    if said and plain is not None:
        found["extra"]["also"] = f"{'; '.join(said)} (plain: {100 * plain:.2f} %)."
    return found


def _contests(trial: Trial, contenders: list[Contender]) -> list[Heat]:
    """Time all contenders at every batch size."""
    settings = trial.settings
    sizes = dict.fromkeys((1, settings.batch_size if settings.batch_size > 1 else BATCHES[1]))
    heats = []
    for size, share in zip(sizes, (FIRST_SHARE, LAST_SHARE), strict=True):
        trial.say(f"recognising with {len(contenders)} decoders, batch size {size}")
        here = [Contender(item.name, item.kind, item.method, item.params, item.note) for item in contenders]
        units, deadline = cut_units(trial.sets, size), trial.budget.deadline(share)
        contest = hold(trial.model, trial.processor, here, units, size, settings.repeats, deadline)
        if contest.done < contest.planned:
            trial.notes.append(
                f"the time limit ended batch size {size} after {contest.done} of {contest.planned} rounds"
            )
        heats.append(Heat(here, contest))
    return heats


def _contender(
    name: str, method: str, thresholds: dict[str, float | None], given: dict[str, Any], trial: Trial
) -> Contender:
    chosen = {key: value for key, value in given.items() if value != AUTO}
    if "theta_ctc" in VARIANTS[method] or method == "ctc_draft:lossless":
        thresholds = {"theta_lm": thresholds["theta_lm"]} if "theta_lm" in thresholds else {}
    if "theta_lm" in VARIANTS[method]:
        thresholds = {key: value for key, value in thresholds.items() if key != "theta_lm"}
    elif (thresholds.get("theta_lm") or 0) > 1 and method == "ctc_draft:verify_only":
        thresholds = {}
    params = parse(method, thresholds | chosen, trial.vocab_size)
    return Contender(name, "strategy", method, params)


def _thresholds(point: Point | None) -> dict[str, float | None]:
    """Return thresholds as parameters; none where no setting was allowed, so that the plain defaults hold."""
    return {} if point is None else {"theta_ctc": point.theta_ctc, "theta_lm": point.theta_lm}


def _more(item: Contender, board: Board, found: Calibration) -> dict[str, Any]:
    """Return what only some rows carry: the calibration curve, and how well gate 1's measure tells right from wrong."""
    if board.suffix:
        return {}
    if item.name == "ctc_draft":
        return {"calibration": found.to_dict() | {"increase": PAPER_INCREASE}}
    if item.name == "ctc_draft:ctc_only" and item.params is not None:
        return {"entropy": board.figures(item.name).doubt(item.params.entropy_agg)}
    return {}


def _absent(present: set[str], wanted: str) -> list[dict[str, Any]]:
    rows = []
    for name in basics():
        if name not in present:
            reason = (
                f"not measured: this run asked for draft={wanted} only" if name == "ctc_draft" else TAKES_TEXT
            )
            rows.append(absent_row(Absent(name, "not_applicable", reason)))
    return rows


def _no_generate() -> dict[str, Any]:
    row = {"name": "transformers_generate", "tokens_per_second": None, "speedup": None, "verdict": "not_run"}
    return row | {"extra": {"reason": NO_GENERATE}}


def _protocol(trial: Trial, heats: list[Heat]) -> dict[str, Any]:
    settings, rate = trial.settings, int(trial.processor.sampling_rate)
    return {
        "tasks": [
            {
                "name": name,
                "samples": len(items),
                "prompt_tokens": 0,
                "new_tokens": max(len(trial.processor.tokenizer(item.text)["input_ids"]) for item in items),
                "extra": {
                    "prompts_sha256": prompts_sha256(items),
                    "seconds": sum(len(item.samples) for item in items) / rate,
                },
            }
            for name, items in trial.sets.items()
        ],
        "batch_size": heats[0].contest.size,
        "sampling": {"temperatures": [0.0]},
        "repeats": settings.repeats,
        "timer": "time.perf_counter around the whole recognition, features and encoder included on both sides, device "
        "synchronised; decoders interleaved per batch in orders drawn anew; speedup compares times for the same audio",
        "extra": {
            "batch_sizes": [heat.contest.size for heat in heats],
            "rounds": [{"done": heat.contest.done, "planned": heat.contest.planned} for heat in heats],
            "dev_utterances": len(trial.dev),
            "sampling_rate": rate,
            "seconds": round(trial.budget.spent, 1),
        },
    }


def _samples(heats: list[Heat]) -> Iterator[dict[str, Any]]:
    """Yield one object a timed recognition: who decoded which utterances into what, by which routes, in which time."""
    for heat in heats:
        for name, runs in heat.contest.runs.items():
            for run in runs:
                yield {
                    "name": name,
                    "batch_size": heat.contest.size,
                    "task": run.unit.task,
                    "unit": run.unit.index,
                    "repeat": run.repeat,
                    "places": run.unit.places,
                    "tokens": [row.tokens for row in run.decoded.rows],
                    "routes": [row.route for row in run.decoded.rows],
                    "seconds": run.wall,
                    "cpu_seconds": run.cpu,
                }


def _remember(trial: Trial, found: Calibration) -> None:
    """Save the setting that loses no word beside the checkpoint; skipped where that place cannot be written."""
    point = found.fastest(0.0)
    if point is None:
        return
    more = {
        "chosen_for": "the fastest setting without a higher word error rate than plain decoding, on the dev set",
        "dev_utterances": found.utterances,
        "noise_db": list(found.noise_db),
        "plain_wer": found.plain_wer,
        "wer": point.wer,
        "torch": torch.__version__,
    }
    with writing("checkpoint", Path(trial.settings.checkpoint)):
        thresholds = {"theta_ctc": point.theta_ctc, "theta_lm": point.theta_lm}
        save_thresholds(trial.loaded.model, trial.settings.checkpoint, thresholds, more)
