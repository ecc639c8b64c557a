"""Along streams whose text changes: what is searched while decoding against a set found on prose before."""

from __future__ import annotations

from typing import Any

from ssd_infer.corpus.shift_text import KINDS, shift_streams
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import Strategy
from ssd_infer.strategies.skip_layers.dp import search_dp
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.streams import decode_streams
from ssd_infer.strategies.study import StudyContext
from ssd_infer.tuning.calibration_text import write_calibration_set
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs

FOUND_ON = KINDS[0]
PROMPTS, SHOWN = 4, 24
"""Streams whose prose is searched on, and new tokens beyond a prompt that costs are measured at."""


def study_search(strategy: type[Strategy], context: StudyContext) -> dict[str, Any]:
    """Decode the streams with nothing known beforehand."""
    assert isinstance(context.target, Target)
    return decode_streams(context, strategy, strategy.parse({}, context.target))


def study_offline(strategy: type[Strategy], context: StudyContext) -> dict[str, Any]:
    """Search a skip set on prose of the validation split; it drafts to the end, whatever its gain."""
    target, drawing, width = context.target, context.sampling.params, context.settings.prompt_tokens
    assert isinstance(target, Target)
    streams = shift_streams(context.tokenizer, PROMPTS, width, seed=1, split="validation")
    material = write_calibration_set(target, [stream[0] for stream in streams], drawing)
    found = search_dp(material, cached_sublayer_costs(target, width + SHOWN, drawing.do_sample))
    prediction = found.prediction
    params = SkipSetParams(
        sorted(found.skips.attention),
        sorted(found.skips.mlp),
        prediction.gamma,
        prediction.confidence,
        aim=round(prediction.alpha, 4),
        guard=0.0,
    )
    return decode_streams(context, strategy, params, f"found on {FOUND_ON}, {prediction.describe()}")
