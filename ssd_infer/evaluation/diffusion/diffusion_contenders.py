"""Who competes on a diffusion checkpoint: stepwise decoding, the drafts, and lossy parallel revealing."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from torch import nn

from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, Decode, Prompts
from ssd_infer.families.diffusion.decoding import block_width
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.diffusion_strategy import Call, DiffusionStrategy, Draft
from ssd_infer.strategies.registry import of_kind
from ssd_infer.strategies.study import Sampling

THRESHOLD = 0.9
"""θ of the lossy peer, Fast-dLLM's own."""


def strategy() -> type[DiffusionStrategy]:
    """Return the strategy whose room decodes diffusion models."""
    return cast("type[DiffusionStrategy]", of_kind("diffusion"))


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
        out = strategy().generate(
            model,
            prompts,
            draft=None if params is None else strategy().info.name,
            draft_params=params,
            max_new_tokens=-(-max_new_tokens // width) * width,
            seed=seed,
            sampler=sampler,
            eos_token_id=eos,
            generation_rules="off",
            **sampling.arguments(),
        )
        sequences: list[list[int]] = out.sequences
        return sequences, out.stats

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


def resolved(
    bench: EvalContext, params: dict[str, Any], sampling: Sampling, sampler: SamplerSettings
) -> Draft:
    """Return the draft with its `auto` resolved on calibration prompts."""
    call = Call(sampler, sampling.params, bench.settings.max_new_tokens, bench.settings.batch_size)
    return strategy().resolve(bench.model, params, call, bench.calibration)


def drafting(
    bench: EvalContext, name: str, draft: Draft, sampling: Sampling, sampler: SamplerSettings
) -> Contender:
    """Return the contender of a resolved draft."""
    plain = draft.drafter is None
    return Contender(
        name,
        "strategy",
        decoding(bench.model, None if plain else draft.params, sampling, sampler),
        draft=strategy().info.name,
        params=draft.params,
        note=draft.note,
        plain=plain,
        extra_bytes=0 if draft.drafter is None else scratch_bytes(bench, draft.drafter.gamma),
    )


def scratch_bytes(bench: EvalContext, gamma: int) -> int:
    """Return what the keys of γ more states and of the block behind them take, in bytes."""
    denoiser = Denoiser.of(bench.model)
    backbone = denoiser.config.backbone_config
    heads = getattr(backbone, "num_key_value_heads", backbone.num_attention_heads)
    size = getattr(backbone, "head_dim", None) or backbone.hidden_size // backbone.num_attention_heads
    width = block_width(denoiser, SamplerSettings.of(bench.model.config), bench.settings.max_new_tokens)
    values = 2 * len(denoiser.layers) * heads * size * width * (gamma + 1) * bench.settings.batch_size
    return int(values * next(bench.model.parameters()).element_size())
