"""The story of one offline search: prompts → material → costs → search → file beside the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ssd_infer.engine.loop import decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers import saved_search as store
from ssd_infer.strategies.skip_layers.bayes import Watch, search_bayes
from ssd_infer.strategies.skip_layers.dp import search_dp
from ssd_infer.strategies.skip_layers.search_result import SearchResult
from ssd_infer.strategies.skip_layers.skip_calibration import remember
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.skip_layers.skip_set import SkipSetDrafter
from ssd_infer.tuning.calibration_text import PROMPTS, CalibrationSet, write_calibration_set
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts, measure_sublayers

MEASURED_TOKENS = 32


Ground = tuple[CalibrationSet, SublayerCosts]
"""The text candidates are scored on, and what sublayers cost."""


def prepare(
    target: Target,
    prompts: list[list[int]],
    do_sample: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Ground:
    """Let the target continue `prompts`, and measure its sublayers."""
    say("decoding the calibration prompts")
    material = write_calibration_set(target, prompts, SamplingParams(do_sample=do_sample), count=len(prompts))
    say("measuring attention, MLP and head")
    return material, measure_sublayers(target, max(map(len, prompts)) + 24, do_sample)


def search(
    target: Target,
    prompts: list[list[int]],
    method: str = "dp",
    seconds: float = 60.0,
    trials: int = 1000,
    do_sample: bool = False,
    measured: bool = False,
    seed: int = 0,
    folder: Path | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] = lambda _line: None,
    ground: Ground | None = None,
) -> SearchResult:
    """Search the best skip set on `prompts`; save it into `folder`, and let `auto` use it in this process.

    `measured`: maximise tokens per second of real decoding instead of the predicted speedup (bayes only). `ground`
    lets several methods search on the same text and costs.
    """
    material, costs = ground or prepare(target, prompts, do_sample, say)
    say(f"searching ({method})")
    if method == "dp":
        found = search_dp(material, costs)
    else:
        objective = tokens_per_second(target, prompts, do_sample) if measured else None
        found = search_bayes(material, costs, seconds, trials, objective, seed, watch)
    found.extra["costs"] = {
        "attention": costs.attention,
        "mlp": costs.mlp,
        "layer": costs.whole.layer_at(1),
        "step": costs.whole.step_at(1),
    }
    remember(target, found, do_sample)
    remember(target, found, do_sample, method=found.method)
    if folder is not None:
        store.save(folder, target, do_sample, found)
    return found


def tokens_per_second(
    target: Target, prompts: list[list[int]], do_sample: bool
) -> Callable[[SkipSet, Prediction], float]:
    """Return an objective that decodes a few prompts with a candidate and divides tokens by seconds."""
    shown = prompts[:PROMPTS]

    def measure(skips: SkipSet, prediction: Prediction) -> float:
        params = SkipSetParams(
            sorted(skips.attention), sorted(skips.mlp), prediction.gamma, prediction.confidence
        )
        begin, tokens = time.perf_counter(), 0
        for prompt in shown:
            sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
            texts, _ = decode(target, [prompt], SkipSetDrafter, params, MEASURED_TOKENS, sampler, StopRule())
            tokens += len(texts[0])
        return tokens / (time.perf_counter() - begin)

    return measure
