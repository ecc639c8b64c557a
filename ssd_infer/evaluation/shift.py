"""Acceptance along streams whose text changes its kind: what is searched while decoding against a set found before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ssd_infer.corpus.shift_text import KINDS, shift_streams
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.target import Target
from ssd_infer.engine.turns import decode_turns
from ssd_infer.evaluation.bench import SHIFT_TOKENS, EvalContext
from ssd_infer.evaluation.budget import Deadline
from ssd_infer.evaluation.contenders import Sampling
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.info import row_name
from ssd_infer.strategies.skip_layers.dp import search_dp
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.tuning.calibration_text import write_calibration_set
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs

BIN = 16
"""New tokens in a bin of the curve."""
FOUND_ON = KINDS[0]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft along the streams."""

    draft: str
    params: DraftParams
    note: str = ""


def shift_study(bench: EvalContext, sampling: Sampling, deadline: Deadline) -> dict[str, dict[str, Any]]:
    """Decode the streams with each way to draft; return what goes to the `extra` of each one's row, by row name.

    All ways decode a stream before the next begins; no stream begins after `deadline`, except the first.
    """
    target = bench.target
    if not isinstance(target, Target) or not bench.shift:
        return {}
    drawing = SamplingParams(not sampling.greedy, sampling.temperature or 1.0, sampling.top_k, sampling.top_p)
    ways = _ways(bench, target, drawing)
    per_turn = max(SHIFT_TOKENS, bench.settings.max_new_tokens)
    found: dict[str, list[Stats]] = {way.draft: [] for way in ways}
    for index, stream in enumerate(bench.shift):
        if index and deadline.passed:
            break
        for way in ways:
            sampler = Sampler(drawing, target.device, seed=bench.settings.seed + index)
            _, stats = decode_turns(target, stream, drafts.get(way.draft), way.params, per_turn, sampler)
            found[way.draft].append(stats)
    return {row_name(way.draft) + sampling.suffix: _facts(found[way.draft], way, per_turn) for way in ways}


def _ways(bench: EvalContext, target: Target, drawing: SamplingParams) -> list[Way]:
    """Return SWIFT and DEL, which know nothing beforehand, and a skip set found on prose alone."""
    ways = [
        Way(name, drafts.get(name).parse({}, target))
        for name in ("swift", "early_exit+del")
        if name in drafts.registry() and drafts.get(name).unsupported_reason(target) is None
    ]
    if "skip_set" in drafts.registry() and drafts.get("skip_set").unsupported_reason(target) is None:
        ways.append(_offline(bench, target, drawing))
    return ways


def _offline(bench: EvalContext, target: Target, drawing: SamplingParams) -> Way:
    """Search a skip set on prose of the validation split; it drafts to the end, whatever its gain."""
    width = bench.settings.prompt_tokens
    prompts = [stream[0] for stream in shift_streams(bench.tokenizer, 4, width, seed=1, split="validation")]
    material = write_calibration_set(target, prompts, drawing)
    found = search_dp(material, cached_sublayer_costs(target, width + 24, drawing.do_sample))
    prediction = found.prediction
    params = SkipSetParams(
        sorted(found.skips.attention),
        sorted(found.skips.mlp),
        prediction.gamma,
        prediction.confidence,
        aim=round(prediction.alpha, 4),
        guard=0.0,
    )
    return Way("skip_set", params, f"found on {FOUND_ON}, {prediction.describe()}")


def _facts(found: Sequence[Stats], way: Way, per_turn: int) -> dict[str, Any]:
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
        "note": way.note,
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
