"""Turn measurements into the rows of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ssd_infer.evaluation.bootstrap import Ratio, Totals, speed_ratio
from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.cost_model import Cost, measured_cost
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.lossy import pooled
from ssd_infer.evaluation.measure import Measurements
from ssd_infer.evaluation.repetition import repetition
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.strategies.registry import group_of
from ssd_infer.strategies.study import Sampling

NOTHING = LosslessResult("not_run", "nothing was decoded")
AGAIN = ":again"
"""What follows the name of a baseline in the name of its second self."""
UNDRAFTED = "it drafted nothing in any timed call, so it is plain decoding"


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

    noise: float | None = None
    """How far, as a share, a baseline measured twice is from itself with 95 %; None: it was not, or not for long."""

    def ratio(self, name: str, task: str | None = None) -> Ratio:
        """Return the speedup of `name` over the fastest baseline; its interval is no narrower than the noise."""
        return self.against(name, self.fastest, task).at_least(self.noise or 0.0)

    def against(self, name: str, other: str, task: str | None = None) -> Ratio:
        """Return how many times as fast as `other` `name` is, with the bootstrap's own interval."""
        return speed_ratio(self.amounts(name, task), self.amounts(other, task), self.seed)

    def amounts(self, name: str, task: str | None = None) -> list[Totals]:
        """Return what speed divides, by unit and block: tokens and wall-clock seconds."""
        return self.found.totals(name, task)

    def rate(self, name: str, task: str | None = None) -> float:
        """Return tokens per second over all repeats."""
        totals = self.found.totals(name, task)
        return sum(part.tokens for part in totals) / sum(part.seconds for part in totals)

    def repetition(self, name: str) -> dict[str, float | int]:
        """Return the repetition figures of the first repeat's outputs."""
        return repetition([tokens for key, tokens in self.found.outputs(name).items() if key[0] == 0])

    def cost(self, name: str) -> Cost:
        """Return c and v of what was measured as `name`, relative to plain decoding's step."""
        return measured_cost(self.found.counted(name), self.found.counted(self.plain))

    def predicted(self, name: str) -> float | None:
        """Return the speedup that acceptance and cost explain."""
        return self.cost(name).predicted(self.found.counted(name).total)

    def baseline_facts(self, name: str) -> dict[str, Any]:
        """Return what a plain decoding's row tells under `extra`."""
        return {
            "repetition": self.repetition(name),
            "fastest": name == self.fastest,
            "after_prefill_tokens_per_second": _steady_rate(name, self),
            "latency": self.found.latency(name),
        }

    def peer_facts(self, contender: Contender) -> dict[str, Any]:
        """Return what a peer's row tells under `extra`, its ratios and verdict apart."""
        return {"params": contender.params, "latency": self.found.latency(contender.name)}

    def strategy_facts(self, contender: Contender, name: str) -> dict[str, Any]:
        """Return what the row of a strategy, measured as `name`, tells under `extra`."""
        return _extra(contender, name, self)

    def task_facts(self, name: str, task: str) -> dict[str, Any]:
        """Return what a row tells of one task beside repetition."""
        del name, task
        return {}


def scoreboard(
    found: Measurements,
    contenders: list[Contender],
    sampling: Sampling,
    seed: int,
    make: Callable[[Measurements, Sampling, str, str, int], Scoreboard] = Scoreboard,
) -> Scoreboard | None:
    """Find the fastest baseline that ran; None when none did, so that nothing can be compared."""
    running = [
        item.name
        for item in contenders
        if item.kind == "baseline" and item.failure is None and found.of(item.name)
    ]
    if not running:
        return None
    board = make(found, sampling, running[0], f"ssd_plain{sampling.suffix}", seed)
    fastest = max(running, key=board.rate)
    again = next((item for item in contenders if item.kind == "again" and found.of(item.name)), None)
    noise = None if again is None else measured_noise(board.against(again.name, itself(again)))
    return replace(board, fastest=fastest, noise=noise)


def itself(again: Contender) -> str:
    """Return the name of the baseline that `again` is."""
    return again.name.replace(AGAIN, "", 1)


def measured_noise(ratio: Ratio) -> float | None:
    """Return how far the interval of a baseline against itself reaches from 1, as a factor less 1."""
    if ratio.ci95 is None or ratio.ci95[0] <= 0:
        return None
    return max(ratio.ci95[1], 1 / ratio.ci95[0], 1.0) - 1.0


def share_plain(found: Measurements, contenders: list[Contender]) -> None:
    """Make plain what turned out to be: a strategy that drafted nothing in all its calls shares a baseline's records.

    What its own calls took stays in its `extra`: a search that found nothing has a price too.
    """
    plain = next((item for item in contenders if item.kind == "baseline" and found.of(item.name)), None)
    for item in contenders:
        if (
            item.kind != "strategy"
            or item.failure is not None
            or item.stands_for is not None
            or plain is None
        ):
            continue
        if found.of(item.name) and not found.counted(item.name).total.drafted:
            item.plain, item.idle = True, True
            item.note = f"{UNDRAFTED} ({item.note})" if item.note else UNDRAFTED


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
    calls = [record.decoded for record in board.found.of(contender.name)]
    if contender.kind == "again":
        ratio = board.against(contender.name, itself(contender))
        facts = {"of": itself(contender), "speedup": ratio.value, "ci95": ratio.ci95, "noise": board.noise}
        extra: dict[str, Any] = {"again": facts}
    else:
        extra = board.baseline_facts(contender.name)
    return {
        "name": contender.name,
        "tokens_per_second": board.rate(contender.name),
        "seconds": sum(call.seconds for call in calls),
        "tokens": sum(len(row) for call in calls for row in call.tokens),
        "extra": extra,
    }


def _steady_rate(name: str, board: Scoreboard) -> float | None:
    """Return tokens a second of batched passes after prefill, which does not hang on how many tokens were asked for."""
    counted = board.found.counted(name)
    seconds = counted.total.seconds["verify"]
    return counted.total.emitted / seconds if seconds > 0 else None


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
    extra = board.peer_facts(contender) | {
        "ci95": ratio.ci95,
        "too_short_to_tell": ratio.too_short,
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
        "family": group_of(absent.name),
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
    """Return the row of a strategy that ran, or of one that is plain decoding."""
    name = _measured_as(contender, board)
    extra = board.strategy_facts(contender, name) | dict(more)
    if contender.plain:
        speed = _plain_speed(name, board, extra.get("predicted_by_calibration"))
    else:
        speed = _speed(name, board, board.predicted(name))
        extra["too_short_to_tell"] = board.ratio(name).too_short
    return {
        "name": contender.name,
        "family": group_of(contender.name),
        "params": contender.params,
        "status": "ok",
        "reason": contender.note or None,
        "lossless": {
            "claimed": contender.claimed,
            "verdict": lossless.verdict,
            "detail": lossless.detail,
            "extra": lossless.extra,
        },
        "acceptance": _acceptance(name, board),
        "speed": speed,
        "cost": board.cost(name).fields(board.found.counted(name).total),
        "memory": {"extra_bytes": contender.extra_bytes},
        "extra": extra,
        "per_task": [_per_task(contender, name, board, task) for task in board.found.tasks()],
    }


def _measured_as(contender: Contender, board: Scoreboard) -> str:
    """Return whose records a row shows: its own, or those of the baseline that it is."""
    if not contender.plain:
        return contender.name
    return contender.stands_for or (board.plain if board.found.of(board.plain) else board.fastest)


def _speed(name: str, board: Scoreboard, predicted: float | None) -> dict[str, Any]:
    ratio = board.ratio(name)
    return {
        "tokens_per_second": board.rate(name),
        "speedup": ratio.value,
        "ci95": ratio.ci95,
        "predicted_speedup": predicted,
        "against": board.fastest,
    }


def _plain_speed(baseline: str, board: Scoreboard, predicted: float | None) -> dict[str, Any]:
    """Return the speed of plain decoding against itself: 1, which no clock was needed for."""
    return {
        "tokens_per_second": board.rate(baseline),
        "speedup": 1.0,
        "ci95": None,
        "predicted_speedup": predicted,
        "against": baseline,
    }


def _acceptance(name: str, board: Scoreboard) -> dict[str, Any]:
    """Return pooled counters; `per_position` is conditional: accepted at k ÷ drafts that verification reached."""
    total = board.found.counted(name).total
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


def _extra(contender: Contender, name: str, board: Scoreboard) -> dict[str, Any]:
    counted = board.found.counted(name)
    return {
        "draft": contender.draft,
        "sampling": board.sampling.arguments(),
        "fell_back_to_plain": contender.plain,
        "repetition": board.repetition(name),
        "mean_of_ratios": 1.0 if contender.plain else _mean_of_ratios(name, board),
        "noise": board.noise,
        "draft_forwards_per_verify": board.cost(name).gamma,
        "seconds": dict(counted.total.seconds),
        "latency": board.found.latency(name),
        "sample_alpha_mean": _sample_alpha(name, board.found),
        "drafter": _drafter_report(contender.name, board.found),
        **_sharing(contender, name, board),
    }


def _mean_of_ratios(name: str, board: Scoreboard) -> float:
    pairs = zip(board.found.totals(name), board.found.totals(board.fastest), strict=True)
    ratios = [our.tokens / our.seconds / (their.tokens / their.seconds) for our, their in pairs]
    return sum(ratios) / len(ratios)


def _sharing(contender: Contender, name: str, board: Scoreboard) -> dict[str, Any]:
    """Say whose samples a plain row shows, and what its own calls took where it had some."""
    if not contender.plain:
        return {}
    if not contender.idle:
        return {"shares_samples_of": name}
    own = board.against(contender.name, name)
    return {
        "shares_samples_of": name,
        "undrafted": {"speedup": own.value, "ci95": own.at_least(board.noise or 0.0).ci95},
    }


def _drafter_report(name: str, found: Measurements) -> dict[str, Any]:
    """Return what the drafter said of its last call: what it searched, chose or switched off.

    Under `lossy` stands what it said of all calls about tokens it emitted uncompared.
    """
    said = [record.decoded.stats.report for record in found.of(name) if record.decoded.stats]
    lossy = pooled(said)
    return (dict(said[-1]) if said else {}) | ({"lossy": lossy} if lossy else {})


def _sample_alpha(name: str, found: Measurements) -> float | None:
    rows = [
        row.alpha for record in found.of(name) if record.decoded.stats for row in record.decoded.stats.rows
    ]
    known = [alpha for alpha in rows if alpha is not None]
    return sum(known) / len(known) if known else None


def _per_task(contender: Contender, name: str, board: Scoreboard, task: str) -> dict[str, Any]:
    total = board.found.counted(name, task).total
    outputs = [
        tokens
        for record in board.found.of(name, task)
        if record.repeat == 0
        for tokens in record.decoded.tokens
    ]
    ratio = Ratio(1.0, None) if contender.plain else board.ratio(name, task)
    return {
        "name": task,
        "tokens_per_second": board.rate(name, task),
        "speedup": ratio.value,
        "ci95": ratio.ci95,
        "alpha": total.alpha,
        "tau": total.tau,
        "extra": {"repetition": repetition(outputs)} | board.task_facts(name, task),
    }
