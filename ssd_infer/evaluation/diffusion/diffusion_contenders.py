"""Who competes on a diffusion checkpoint: stepwise decoding, the drafts, and lossy parallel revealing."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, Decode, Prompts
from ssd_infer.families.diffusion.decoding import block_width
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.fewer_steps.fewer_steps import NAME, resolve
from ssd_infer.strategies.fewer_steps.generate import generate
from ssd_infer.strategies.study import Sampling

THRESHOLD = 0.9
"""θ of the lossy peer, Fast-dLLM's own."""


def decoding(
    model: nn.Module,
    params: dict[str, Any] | None,
    sampling: Sampling,
    sampler: SamplerSettings,
    eos: Any = None,
) -> Decode:
    """Return a decode function with a draft of these parameters, or stepwise for None.

    `eos` None takes the model's own end marks.
    """
    denoiser = Denoiser.of(model)

    def decode(prompts: Prompts, max_new_tokens: int, seed: int) -> tuple[list[list[int]], Stats | None]:
        width = 1 if denoiser.block_causal else block_width(denoiser, sampler, max_new_tokens)
        out = generate(
            model,
            prompts,
            draft=None if params is None else NAME,
            draft_params=params,
            max_new_tokens=-(-max_new_tokens // width) * width,
            seed=seed,
            sampler=sampler,
            eos_token_id=eos,
            generation_rules="off",
            **sampling.arguments(),
        )
        return out.sequences, out.stats

    return decode


def baseline(bench: EvalContext, sampling: Sampling, sampler: SamplerSettings) -> Contender:
    """Return stepwise decoding with the same sampler and cache: one state a call, the same engine."""
    name = f"ssd_plain{sampling.suffix}"
    return Contender(name, "baseline", decoding(bench.model, None, sampling, sampler))


def lossy_peer(bench: EvalContext, sampling: Sampling, sampler: SamplerSettings) -> Contender:
    """Return threshold-parallel revealing, which a user might take instead; its output is another."""
    parallel = dataclasses.replace(sampler, rule="threshold", threshold=THRESHOLD)
    decode = decoding(bench.model, None, sampling, parallel)
    peer = Contender(f"threshold_parallel{sampling.suffix}", "peer", decode, claimed=False)
    peer.params = {"threshold": THRESHOLD}
    peer.note = f"lossy: {parallel.lossy}"
    return peer


def resolved_contender(
    bench: EvalContext, name: str, params: dict[str, Any], sampling: Sampling, sampler: SamplerSettings
) -> tuple[Contender, float | None]:
    """Return the contender of a draft, its `auto` resolved on calibration prompts, and its predicted speedup."""
    how = SamplingParams(not sampling.greedy, sampling.temperature or 1.0, sampling.top_k, sampling.top_p)
    batch = bench.settings.batch_size
    draft = resolve(
        bench.model, NAME, params, sampler, how, bench.calibration, bench.settings.max_new_tokens, batch
    )
    plain = draft.drafter is None
    contender = Contender(
        name,
        "strategy",
        decoding(bench.model, None if plain else draft.params, sampling, sampler),
        draft=NAME,
        params=draft.params,
        note=draft.note,
        plain=plain,
        extra_bytes=0 if draft.drafter is None else scratch_bytes(bench, draft.drafter.gamma),
    )
    return contender, draft.predicted_speedup


def scratch_bytes(bench: EvalContext, gamma: int) -> int:
    """Return what the keys of γ more states and of the block behind them take, in bytes."""
    denoiser = Denoiser.of(bench.model)
    backbone = denoiser.config.backbone_config
    heads = getattr(backbone, "num_key_value_heads", backbone.num_attention_heads)
    size = getattr(backbone, "head_dim", None) or backbone.hidden_size // backbone.num_attention_heads
    width = block_width(denoiser, SamplerSettings.of(bench.model.config), bench.settings.max_new_tokens)
    values = 2 * len(denoiser.layers) * heads * size * width * (gamma + 1) * bench.settings.batch_size
    return int(values * next(bench.model.parameters()).element_size())
