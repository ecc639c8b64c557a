"""Acceptance along streams whose text changes its kind, for strategies that learn while decoding, or before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ssd_infer.corpus.shift_text import FEWEST_TOKENS, KINDS
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.target import Target
from ssd_infer.engine.turns import decode_turns
from ssd_infer.strategies.base import DraftParams, Strategy
from ssd_infer.strategies.study import Study, StudyContext

KEY = "task_shift"
"""Where a row's `extra` holds what was found."""
BIN = 16
"""New tokens in a bin of the curve."""


def stream_studies(
    strategy: type[Strategy], context: StudyContext, run: Callable[[StudyContext], dict[str, Any]]
) -> list[Study]:
    """Return `run` as a study where streams were asked for and `strategy` works on the model."""
    if not context.streams or isinstance(context.target, str):
        return []
    if strategy.unsupported_reason(context.target) is not None:
        return []
    return [Study(KEY, run, "streams")]


def decode_streams(
    context: StudyContext, strategy: type[Strategy], params: DraftParams, note: str = ""
) -> dict[str, Any]:
    """Decode the streams of `context` and return acceptance by place and by kind of text.

    No stream begins after the deadline, except the first.
    """
    target, drawing = context.target, context.sampling.params
    if not isinstance(target, Target) or not context.streams:
        return {}
    per_turn = max(FEWEST_TOKENS, context.settings.max_new_tokens)
    found: list[Stats] = []
    for index, stream in enumerate(context.streams):
        if index and context.deadline.passed:
            break
        sampler = Sampler(drawing, target.device, seed=context.settings.seed + index)
        found.append(decode_turns(target, stream, strategy, params, per_turn, sampler)[1])
    return _facts(found, note, per_turn)


def _facts(found: Sequence[Stats], note: str, per_turn: int) -> dict[str, Any]:
    """Pool all streams: acceptance by bin of new tokens, and by kind of text."""
    bins: dict[int, list[int]] = {}
    kinds = [[0, 0, 0, 0] for _ in KINDS]
    for stats in found:
        for emitted, drafted, accepted in stats.rows[0].trace:
            entry = bins.setdefault(emitted // BIN, [0, 0])
            entry[0] += drafted
            entry[1] += accepted
            kind = kinds[min(emitted // per_turn, len(KINDS) - 1)]
            for place, value in enumerate((1, int(drafted > 0), drafted, accepted)):
                kind[place] += value
    return {
        "streams": len(found),
        "per_turn": per_turn,
        "bin": BIN,
        "note": note,
        "curve": [
            {"start": BIN * at, "drafted": bins[at][0], "accepted": bins[at][1]} for at in sorted(bins)
        ],
        "kinds": [
            {
                "name": name,
                "rounds": rounds,
                "drafting_rounds": drafting,
                "drafted": drafted,
                "accepted": accepted,
                "alpha": accepted / drafted if drafted else None,
                "tau": 1 + accepted / rounds if rounds else None,
            }
            for name, (rounds, drafting, drafted, accepted) in zip(KINDS, kinds, strict=True)
        ],
        "searches": [stats.report["episodes"] for stats in found if "episodes" in stats.report],
    }
