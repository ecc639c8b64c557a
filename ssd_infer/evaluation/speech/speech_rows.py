"""Turn measured decoders into the rows of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssd_infer.evaluation.bootstrap import Ratio
from ssd_infer.evaluation.losslessness import LosslessResult, judge_greedy
from ssd_infer.evaluation.repetition import repetition
from ssd_infer.evaluation.speech.contest import Benchmark, Contender
from ssd_infer.evaluation.speech.speech_figures import Figures
from ssd_infer.evaluation.stream import both
from ssd_infer.evaluation.summary import measured_noise
from ssd_infer.strategies.registry import group_of

PLAIN = "ar_greedy"
LOSSLESS = "ctc_draft:lossless"
AGAIN = PLAIN + ":again"
"""Plain decoding a second time: how far the two seem apart is the noise of the report."""


@dataclass(frozen=True, slots=True)
class Board:
    """The runs at one batch size, divided by plain decoding at the same batch size."""

    contest: Benchmark
    processor: Any
    vocab_size: int
    seed: int
    suffix: str
    """What row names carry: nothing for the first batch size, else for instance `:b8`."""

    @property
    def noise(self) -> float | None:
        """How far plain decoding is from itself with 95 %; None where it was not measured twice."""
        if AGAIN not in self.contest.runs or PLAIN not in self.contest.runs:
            return None
        return measured_noise(self.contest.ratio(AGAIN, PLAIN, self.seed))

    def ratio(self, name: str, task: str | None = None) -> Ratio:
        """Return the speedup of `name` over plain decoding; its interval is no narrower than the noise."""
        return self.contest.ratio(name, PLAIN, self.seed, task=task).at_least(self.noise or 0.0)

    def figures(self, name: str) -> Figures:
        """Return the figures of one contender."""
        return Figures(self.contest, name, self.processor)

    def step_seconds(self) -> float:
        """Return the seconds of one step of plain decoding."""
        plain = self.figures(PLAIN)
        return plain.seconds()["fallback"] / max(1, plain.work().forwards)

    def speech(self, name: str) -> dict[str, Any]:
        """Return what a row's `extra.speech` says."""
        mine = self.figures(name)
        encoder = mine.seconds()["features"] + mine.seconds()["encode"]
        spent = sum(mine.seconds().values())
        same = self.equality(name)
        return {
            **mine.quality(),
            "batch_size": self.contest.size,
            "sets": [{"name": task, **mine.quality(task)} for task in self.contest.tasks()],
            "rtfx": self.contest.rtfx(name),
            "routes": mine.routes(),
            "kept_prefix": mine.kept(),
            "exact_match": same.extra.get("exact_match"),
            "encoder_share": encoder / spent if spent else None,
            "decoder_forwards": mine.work().forwards / mine.utterances(),
            "decoder_positions": mine.work().positions / mine.utterances(),
            "cpu_speedup": self.contest.ratio(name, PLAIN, self.seed, "cpu").value,
            "seconds": mine.seconds(),
        }

    def equality(self, name: str) -> LosslessResult:
        """Compare every output with plain decoding's."""
        found = judge_greedy(self.figures(name).outputs(), {PLAIN: self.figures(PLAIN).outputs()})
        return LosslessResult(found.verdict, found.detail, found.extra)


def baseline_row(item: Contender, board: Board) -> dict[str, Any]:
    """Return the row of plain decoding."""
    name = item.name + board.suffix
    if item.failure is not None:
        reason = {"reason": item.failure}
        return {"name": name, "tokens_per_second": None, "seconds": None, "tokens": 0, "extra": reason}
    mine = board.figures(item.name)
    seconds = sum(run.wall for run in mine.runs)
    return {
        "name": name,
        "tokens_per_second": mine.tokens() / seconds,
        "seconds": seconds,
        "tokens": mine.tokens(),
        "extra": _again(board)
        if item.kind == "again"
        else {"speech": board.speech(item.name), "fastest": True},
    }


def _again(board: Board) -> dict[str, Any]:
    """Return what plain decoding measured against itself shows."""
    if PLAIN not in board.contest.runs:
        return {"reason": "plain decoding did not run"}
    ratio = board.contest.ratio(AGAIN, PLAIN, board.seed)
    facts = {"of": PLAIN + board.suffix, "speedup": ratio.value, "ci95": ratio.ci95, "noise": board.noise}
    return {"again": facts}


def peer_row(item: Contender, board: Board) -> dict[str, Any]:
    """Return the row of a reference decoder."""
    row: dict[str, Any] = {"name": item.name + board.suffix, "tokens_per_second": None, "speedup": None}
    if item.failure is not None or PLAIN not in board.contest.runs:
        reason = item.failure or "no plain decoding ran"
        return row | {"verdict": "not_run", "extra": {"reason": reason}}
    mine, same = board.figures(item.name), board.equality(item.name)
    ratio = board.ratio(item.name)
    return row | {
        "tokens_per_second": mine.tokens() / sum(run.wall for run in mine.runs),
        "speedup": ratio.value,
        "verdict": same.verdict,
        "extra": {
            "speech": board.speech(item.name),
            "ci95": ratio.ci95,
            "too_short_to_tell": ratio.too_short,
            "against": PLAIN + board.suffix,
            "detail": same.detail,
            "per_task": [
                {"name": task, "speedup": board.ratio(item.name, task).value}
                for task in board.contest.tasks()
            ],
        },
    }


def strategy_row(
    item: Contender, board: Board, more: Mapping[str, Any], exact: LosslessResult | None = None
) -> dict[str, Any]:
    """Return the row of a draft that ran; `exact` is what decodings beside the timed ones found."""
    mine, same = board.figures(item.name), board.equality(item.name)
    same = same if exact is None else both(same, exact)
    ratio, pooled, work = board.ratio(item.name), mine.acceptance(), mine.work()
    pairs = zip(pooled.per_position_accepted, pooled.per_position_drafted, strict=True)
    claimed = item.name == LOSSLESS
    return {
        "name": item.name + board.suffix,
        "family": group_of(item.name),
        "params": {} if item.params is None else _params(item),
        "status": "ok",
        "reason": item.note or None,
        "lossless": {
            "claimed": claimed,
            "verdict": same.verdict,
            "detail": same.detail if claimed else f"lossy by design; {same.detail}",
            "extra": same.extra,
        },
        "acceptance": {
            "rounds": pooled.rounds,
            "drafted": pooled.drafted,
            "accepted": pooled.accepted,
            "alpha": pooled.alpha,
            "tau": pooled.tau,
            "histogram": list(pooled.histogram),
            "per_position": [taken / reached if reached else None for taken, reached in pairs],
        },
        "speed": {
            "tokens_per_second": mine.tokens() / sum(run.wall for run in mine.runs),
            "speedup": ratio.value,
            "ci95": ratio.ci95,
            "predicted_speedup": _predicted(item, board),
            "against": PLAIN + board.suffix,
        },
        "cost": {
            "draft_ratio_c": mine.seconds()["ctc"] / len(mine.runs) / board.step_seconds(),
            "verify_ratio": _verify_ratio(mine, board),
            "forwards": {"target": work.forwards, "draft": len(mine.runs)},
        },
        "memory": {"extra_bytes": 0},
        "extra": {
            "draft": item.method,
            "repetition": repetition([row.tokens for _, row in mine.rows()]),
            "fell_back_to_plain": False,
            "noise": board.noise,
            "too_short_to_tell": ratio.too_short,
            "seconds": mine.seconds(),
            "speech": board.speech(item.name) | _relative(item, board.vocab_size),
            **more,
        },
        "per_task": [_per_task(item, board, task) for task in board.contest.tasks()],
    }


def _params(item: Contender) -> dict[str, Any]:
    """Return the parameters that matter to this variant."""
    if item.params is None or item.name == "ctc_draft:ctc_only":
        return {}
    names = ("resync", "max_verify_rounds") if item.params.accept == "greedy" else ("theta_ctc", "theta_lm")
    found = item.params.to_dict()
    return {name: _rounded(found[name]) for name in names}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _relative(item: Contender, vocab_size: int) -> dict[str, Any]:
    """Return θ_CTC in nats and ÷ ln V, and ln θ_LM ÷ ln V: only the relative figures compare across vocabularies."""
    if item.params is None or item.params.accept == "greedy" or item.name == "ctc_draft:ctc_only":
        return {}
    scale, theta, low = math.log(vocab_size), item.params.theta_ctc, item.params.theta_lm
    return {
        "theta_ctc_nats": theta,
        "theta_ctc_relative": None if theta is None else theta / scale,
        "log_theta_lm_relative": math.log(low) / scale if 0 < low <= 1 else None,
    }


def _verify_ratio(mine: Figures, board: Board) -> float | None:
    """Return v: seconds of one verify pass, audio keys and values included, ÷ one plain step; None without a pass."""
    passes = mine.work().verifies
    return mine.seconds()["verify"] / passes / board.step_seconds() if passes else None


def _predicted(item: Contender, board: Board) -> float | None:
    """Predict the speedup from counted passes and the row's own c and v: t_AR ÷ (t_enc + c + passes·v + steps)."""
    mine, plain = board.figures(item.name), board.figures(PLAIN)
    step, share = board.step_seconds(), mine.utterances() / plain.utterances()
    encoder = (plain.seconds()["features"] + plain.seconds()["encode"]) * share
    steps = mine.work().forwards - mine.work().verifies
    ours = encoder + mine.seconds()["ctc"] + mine.seconds()["verify"] + steps * step
    theirs = encoder + plain.work().forwards * share * step
    return theirs / ours if ours > 0 else None


def _per_task(item: Contender, board: Board, task: str) -> dict[str, Any]:
    ratio = board.ratio(item.name, task)
    mine = board.figures(item.name)
    runs = [run for run in mine.runs if run.unit.task == task]
    stats = [row.stats for run in runs for row in run.decoded.rows]
    drafted, rounds = sum(row.drafted for row in stats), sum(row.rounds for row in stats)
    accepted = sum(row.accepted for row in stats)
    seconds = sum(run.wall for run in runs)
    return {
        "name": task,
        "tokens_per_second": sum(len(row.tokens) for run in runs for row in run.decoded.rows) / seconds,
        "speedup": ratio.value,
        "ci95": ratio.ci95,
        "alpha": accepted / drafted if drafted else None,
        "tau": accepted / rounds + 1 if rounds else None,
        "extra": {
            "repetition": repetition([row.tokens for _, row in mine.rows(task)]),
            **mine.quality(task),
            "rtfx": board.contest.rtfx(item.name, task),
        },
    }
