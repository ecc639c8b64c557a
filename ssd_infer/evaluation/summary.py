"""Turn measurements into the rows of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssd_infer.evaluation.bootstrap import Ratio, speed_ratio
from ssd_infer.evaluation.contenders import Contender, Sampling
from ssd_infer.evaluation.cost_model import Cost, measured_cost
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.lossy import pooled
from ssd_infer.evaluation.measure import Measurements
from ssd_infer.evaluation.repetition import repetition
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.report.schema import FAMILIES, base_name

NOTHING = LosslessResult("not_run", "nothing was decoded")


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """The measurements of one sampling setting, and the plain decoding that everything is divided by."""

    found: Measurements
    sampling: Sampling
    fastest: str
    """Name of the fastest baseline."""
    plain: str
    """Name of our own plain loop, whose step is the unit of c and v."""
    seed: int

    def ratio(self, name: str, task: str | None = None) -> Ratio:
        """Return the speedup of `name` over the fastest baseline."""
        return speed_ratio(self.found.totals(name, task), self.found.totals(self.fastest, task), self.seed)

    def rate(self, name: str, task: str | None = None) -> float:
        """Return tokens per second over all repeats."""
        totals = self.found.totals(name, task)
        return sum(part.tokens for part in totals) / sum(part.seconds for part in totals)

    def repetition(self, name: str) -> dict[str, float | int]:
        """Return the repetition figures of the first repeat's outputs."""
        return repetition([tokens for key, tokens in self.found.outputs(name).items() if key[0] == 0])


def scoreboard(
    found: Measurements, contenders: list[Contender], sampling: Sampling, seed: int
) -> Scoreboard | None:
    """Find the fastest baseline that ran; None when none did, so that nothing can be compared."""
    running = [
        item.name
        for item in contenders
        if item.kind == "baseline" and item.failure is None and item.name in found.records
    ]
    if not running:
        return None
    board = Scoreboard(found, sampling, running[0], f"ssd_plain{sampling.suffix}", seed)
    fastest = max(running, key=board.rate)
    return Scoreboard(found, sampling, fastest, board.plain, seed)


def baseline_row(contender: Contender, board: Scoreboard | None) -> dict[str, Any]:
    """Return the report's row of a plain decoding."""
    if board is None or contender.failure is not None:
        return {
            "name": contender.name,
            "tokens_per_second": None,
            "seconds": None,
            "tokens": 0,
            "extra": {"reason": contender.failure or "not measured"},
        }
    totals = board.found.totals(contender.name)
    return {
        "name": contender.name,
        "tokens_per_second": board.rate(contender.name),
        "seconds": sum(part.seconds for part in totals),
        "tokens": sum(part.tokens for part in totals),
        "extra": {"repetition": board.repetition(contender.name), "fastest": contender.name == board.fastest},
    }


def peer_row(contender: Contender, board: Scoreboard | None, lossless: LosslessResult) -> dict[str, Any]:
    """Return the report's row of what a user would pick instead."""
    row: dict[str, Any] = {
        "name": contender.name,
        "tokens_per_second": None,
        "speedup": None,
        "verdict": "not_run",
    }
    if board is None or contender.failure is not None:
        return row | {
            "extra": {
                "params": contender.params,
                "reason": contender.failure or "no baseline to compare with",
            }
        }
    ratio = board.ratio(contender.name)
    extra = {
        "params": contender.params,
        "ci95": ratio.ci95,
        "against": board.fastest,
        "detail": lossless.detail,
        "per_task": [
            {"name": task, "speedup": board.ratio(contender.name, task).value} for task in board.found.tasks()
        ],
    }
    return row | {
        "tokens_per_second": board.rate(contender.name),
        "speedup": ratio.value,
        "verdict": lossless.verdict,
        "extra": extra,
    }


def absent_row(absent: Absent, claimed: bool = True) -> dict[str, Any]:
    """Return the row of a strategy without figures."""
    return {
        "name": absent.name,
        "family": FAMILIES[base_name(absent.name)],
        "params": {},
        "status": absent.status,
        "reason": absent.reason,
        "lossless": {"claimed": claimed, "verdict": NOTHING.verdict, "detail": NOTHING.detail},
        "acceptance": {
            "rounds": 0,
            "drafted": 0,
            "accepted": 0,
            "alpha": None,
            "tau": None,
            "histogram": [],
            "per_position": [],
        },
        "speed": {
            "tokens_per_second": None,
            "speedup": None,
            "ci95": None,
            "predicted_speedup": None,
            "against": None,
        },
        "cost": {"draft_ratio_c": None, "verify_ratio": None, "forwards": {"target": 0, "draft": 0}},
        "memory": {"extra_bytes": None},
        "extra": {},
        "per_task": [],
    }


def strategy_row(
    contender: Contender, board: Scoreboard, lossless: LosslessResult, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the row of a strategy that ran."""
    counted, ratio = board.found.counted(contender.name), board.ratio(contender.name)
    cost = measured_cost(counted, board.found.counted(board.plain))
    return {
        "name": contender.name,
        "family": FAMILIES[base_name(contender.name)],
        "params": contender.params,
        "status": "ok",
        "reason": contender.note or None,
        "lossless": {
            "claimed": contender.claimed,
            "verdict": lossless.verdict,
            "detail": lossless.detail,
            "extra": lossless.extra,
        },
        "acceptance": _acceptance(contender, board),
        "speed": {
            "tokens_per_second": board.rate(contender.name),
            "speedup": ratio.value,
            "ci95": ratio.ci95,
            "predicted_speedup": 1.0 if contender.plain else cost.predicted(counted.total),
            "against": board.fastest,
        },
        "cost": cost.fields(counted.total),
        "memory": {"extra_bytes": contender.extra_bytes},
        "extra": _extra(contender, board, cost) | dict(more),
        "per_task": [_per_task(contender, board, task) for task in board.found.tasks()],
    }


def _acceptance(contender: Contender, board: Scoreboard) -> dict[str, Any]:
    """Return pooled counters; `per_position` is conditional: accepted at k ÷ drafts that verification reached."""
    total = board.found.counted(contender.name).total
    pairs = zip(total.per_position_accepted, total.per_position_drafted, strict=True)
    return {
        "rounds": total.rounds,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "alpha": total.alpha,
        "tau": total.tau,
        "histogram": list(total.histogram),
        "per_position": [taken / reached if reached else None for taken, reached in pairs],
    }


def _extra(contender: Contender, board: Scoreboard, cost: Cost) -> dict[str, Any]:
    counted = board.found.counted(contender.name)
    ratios = [
        our.tokens / our.seconds / (their.tokens / their.seconds)
        for our, their in zip(
            board.found.totals(contender.name), board.found.totals(board.fastest), strict=True
        )
    ]
    return {
        "draft": contender.draft,
        "sampling": board.sampling.arguments(),
        "fell_back_to_plain": contender.plain,
        "repetition": board.repetition(contender.name),
        "mean_of_ratios": sum(ratios) / len(ratios),
        "draft_forwards_per_verify": cost.gamma,
        "seconds": dict(counted.total.seconds),
        "sample_alpha_mean": _sample_alpha(contender.name, board.found),
        "drafter": _drafter_report(contender.name, board.found),
    }


def _drafter_report(name: str, found: Measurements) -> dict[str, Any]:
    """Return what the drafter said of its last call: what it searched, chose or switched off.

    Under `lossy` stands what it said of all calls about tokens it emitted uncompared.
    """
    said = [record.decoded.stats.report for record in found.records[name] if record.decoded.stats]
    lossy = pooled(said)
    return (dict(said[-1]) if said else {}) | ({"lossy": lossy} if lossy else {})


def _sample_alpha(name: str, found: Measurements) -> float | None:
    rows = [
        row.alpha
        for record in found.records[name]
        if record.decoded.stats
        for row in record.decoded.stats.rows
    ]
    known = [alpha for alpha in rows if alpha is not None]
    return sum(known) / len(known) if known else None


def _per_task(contender: Contender, board: Scoreboard, task: str) -> dict[str, Any]:
    ratio, total = board.ratio(contender.name, task), board.found.counted(contender.name, task).total
    outputs = [
        tokens
        for record in board.found.records[contender.name]
        if record.task == task and record.repeat == 0
        for tokens in record.decoded.tokens
    ]
    return {
        "name": task,
        "tokens_per_second": board.rate(contender.name, task),
        "speedup": ratio.value,
        "ci95": ratio.ci95,
        "alpha": total.alpha,
        "tau": total.tau,
        "extra": {"repetition": repetition(outputs)},
    }
