"""Families whose layers remember by recurrence: in place of attention in some, beside it, or in all of them."""

from __future__ import annotations

from dataclasses import replace

from ssd_infer.engine.families.base import CausalFamily, Found, Parts, Sublayers
from ssd_infer.engine.families.scales import divided, multiplied, scaled


def _side_by_side(found: Found) -> str:
    del found
    return "attention and a recurrent mixer stand side by side in its layers, and are not skipped one without the other"


def _one_sublayer(found: Found) -> str:
    del found
    return "each of its layers holds one sublayer only, so that leaving out sublayers is leaving out layers"


QWEN3_NEXT = CausalFamily(
    name="qwen3_next",
    model_types=("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    sublayers=Sublayers(mixer="linear_attn"),
)
LFM2 = CausalFamily(
    name="lfm2",
    model_types=("lfm2", "lfm2_moe"),
    parts=Parts(norm=("embedding_norm",)),
    sublayers=Sublayers(mlp="feed_forward", mixer="conv"),
)
GRANITE_HYBRID = CausalFamily(
    name="granitemoehybrid",
    model_types=("granitemoehybrid",),
    sublayers=Sublayers(mlp="shared_mlp", mixer="mamba"),
    enter=multiplied,
    leave=divided,
)
BAMBA = CausalFamily(
    name="bamba",
    model_types=("bamba",),
    parts=Parts(norm=("final_layernorm",)),
    sublayers=Sublayers(mlp="feed_forward", mixer="mamba"),
)
FALCON_H1 = CausalFamily(
    name="falcon_h1",
    model_types=("falcon_h1",),
    parts=Parts(norm=("final_layernorm",)),
    sublayers=Sublayers(mlp="feed_forward", mixer="mamba"),
    enter=multiplied,
    leave=scaled("lm_head_multiplier"),
    fixed=_side_by_side,
)
NEMOTRON_H = CausalFamily(
    name="nemotron_h",
    model_types=("nemotron_h",),
    parts=Parts(embedding="embeddings", norm=("norm_f",), rotary=None),
    sublayers=Sublayers(attention="mixer", mixer="mixer"),
    fixed=_one_sublayer,
)
MAMBA2 = replace(NEMOTRON_H, name="mamba2", model_types=("mamba2",))
