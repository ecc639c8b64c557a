"""Which draft head a skip set drafts best with: every kind and size on the text that calibrates γ and threshold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.strategies.head_report import head_facts
from ssd_infer.tuning.calibration_text import CalibrationSet
from ssd_infer.tuning.draft_heads import FULL, HeadOption, make_head
from ssd_infer.tuning.head_ground import cached_ground
from ssd_infer.tuning.head_study import along_text, head_seconds
from ssd_infer.tuning.prediction import predict
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts


@torch.inference_mode()
def best_head(
    material: CalibrationSet,
    skips: SkipSet,
    costs: SublayerCosts,
    options: Sequence[HeadOption],
    prompts: list[list[int]],
    gammas: Iterable[int],
    thresholds: Iterable[float],
) -> tuple[Prediction, HeadOption, dict[str, Any]]:
    """Return the fastest prediction of `skips` with one of the restricted `options`, that head, and its facts."""
    target: Target = material.target
    sampler, lengths, stops = material.session.sampler, list(gammas), list(thresholds)
    seconds = head_seconds(target, options, prompts, not sampler.greedy)
    states = material.states_with(skip_view(target, skips))
    texts = [row.tokens for row in material.session.rows]
    found = []
    for option in options:
        head = make_head(target, option, prompts, target.num_layers)
        scored = along_text(head, sampler, states, material.reference, texts, material.starts)
        priced = costs.cheaper(seconds[FULL] - seconds[option])
        prediction = predict(scored.scores, skips, priced, sampler.greedy, lengths, stops)
        found.append((prediction, option, scored))
    prediction, option, scored = max(found, key=lambda one: one[0].speedup)
    full = material.compare(target.logits(states)).mean
    return prediction, option, head_facts(option, scored, full, seconds, cached_ground(target, prompts).note)
