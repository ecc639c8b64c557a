"""Families that differ from Llama by names, by what a layer does with its sublayers, or by what they refuse."""

from __future__ import annotations

from typing import Any

from torch import nn

from ssd_infer.engine.families.base import CausalFamily, Parts, Sublayers
from ssd_infer.engine.families.stand_ins import ZEROS, ZEROS_OF_TWO


def _routed_stand_in(layer: nn.Module, part: str) -> nn.Module | None:
    del layer
    return ZEROS_OF_TWO if part == "mlp" else None


def _llama4_stand_in(layer: nn.Module, part: str) -> nn.Module | None:
    if part == "attention":
        return None
    return ZEROS_OF_TWO if getattr(layer, "is_moe_layer", False) else ZEROS


def _llama4_unfit(config: Any, prompts: list[int], new: int) -> str | None:
    """Refuse batches that reach a position from which layers without rotary embeddings scale their queries.

    Those layers count positions by the longest row of a batch.
    """
    scale = getattr(config, "floor_scale", None)
    tuned = getattr(config, "attn_temperature_tuning", False) and not all(config.no_rope_layers)
    if not tuned or scale is None or len(prompts) == 1 or max(prompts) + new <= scale:
        return None
    return (
        f"from position {scale} on it scales queries by the longest row of a batch, so that rows of different lengths "
        "must be decoded one by one"
    )


def _phi3_unfit(config: Any, prompts: list[int], new: int) -> str | None:
    """Refuse texts that begin before the switch of `longrope` and go past it: `generate` encodes them anew there."""
    switch = getattr(config, "original_max_position_embeddings", None)
    ropes = getattr(config, "rope_parameters", None) or {}
    if switch is None or ropes.get("rope_type") != "longrope":
        return None
    if all(length > switch or length + new - 1 <= switch for length in prompts):
        return None
    return (
        f"its rotary embeddings change at {switch} tokens, where generate encodes the whole text anew: a prompt of at "
        f"most {switch} tokens cannot be decoded past them in blocks (ask for fewer tokens)"
    )


PHI = CausalFamily(name="phi", model_types=("phi", "persimmon"), parts=Parts(norm=("final_layernorm",)))
PHI3 = CausalFamily(name="phi3", model_types=("phi3", "phimoe"), unfit=_phi3_unfit)
GPT_NEOX = CausalFamily(
    name="gpt_neox",
    model_types=("gpt_neox",),
    parts=Parts(embedding="embed_in", norm=("final_layer_norm",)),
    sublayers=Sublayers(attention="attention"),
)
GPT_J = CausalFamily(
    name="gptj",
    model_types=("gptj", "codegen"),
    parts=Parts(embedding="wte", layers="h", norm=("ln_f",), may_lack_rotary=True),
    sublayers=Sublayers(attention="attn", serving={"attention": (), "mlp": ()}),
)
GPT_OSS = CausalFamily(
    name="gpt_oss", model_types=("gpt_oss",), sublayers=Sublayers(stand_in=_routed_stand_in)
)
LLAMA4 = CausalFamily(
    name="llama4_text",
    model_types=("llama4_text",),
    parts=Parts(base=("model",)),
    sublayers=Sublayers(mlp="feed_forward", stand_in=_llama4_stand_in),
    unfit=_llama4_unfit,
)
