"""Tiny random models of every causal family that the installed transformers offers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB, LAYERS, POSITIONS, WINDOW = 97, 4, 64, 8
LARGEST = 20_000_000
"""Parameters above which a model stays on the meta device: its configuration cannot be made tiny field by field."""
NAMES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

NOT_TINY = {
    "cohere_compass_text",
    "dbrx",
    "gemma3n",
    "gemma4_assistant",
    "musicgen",
    "musicgen_melody",
    "qwen4_exp",
    "qwen4_exp_text",
    "zamba",
}
"""Families whose configuration is valid only as a whole, or which need a further library."""
if transformers.__version__.startswith("5.19."):
    NOT_TINY.add("gemma4_unified_assistant")  # its class cannot be made from its own default there

NEWEST = transformers.__version__.startswith("5.24.")
"""Whether this is the newest tested release, at whose models the families of this toolkit were looked at."""
needs_states = pytest.mark.skipif(
    not NEWEST,
    reason="older releases of transformers do not go on from a recurrent state over several tokens",
)

_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "ffn_hidden_size", "mamba_d_ssm"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "linear_num_key_heads", "index_n_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_channels", "attention_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "first_k_dense_replace"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("sliding_window", "attention_window", "attention_window_size", "block_size"), WINDOW),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_head_dim", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank", "rotary_dim", "linear_num_value_heads"), 4),
    "num_experts_per_tok": 2,
    "qk_head_dim": 16,
    "expand": 2,
    "index_topk": 64,
    "initializer_range": 0.2,  # wide enough that the most probable token is no tie
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OWN: dict[str, dict[str, Any]] = {
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * LAYERS},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": LAYERS},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "plbart": {"decoder_attention_heads": 4, "encoder_attention_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "whisper": {"decoder_attention_heads": 4, "encoder_attention_heads": 4},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"] * (LAYERS // 2)},
    "zaya": {"num_experts_per_tok": 1},
    "granite": {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "cohere": {"logit_scale": 0.25},
}
"""What a family needs beyond the common shape, or what makes it differ from others."""


def tiny_config(name: str, **changes: Any) -> Any:
    """Return the configuration of a family with every size it has made small, but for `changes`."""
    kind = CONFIG_MAPPING[name]
    usual = kind()
    fields = {*inspect.signature(kind.__init__).parameters, *vars(usual), *kind.attribute_map}
    given = {field: value for field, value in _SHAPE.items() if field in fields} | _OWN.get(name, {})
    if "qk_rope_head_dim" in given:  # multi-head latent attention derives it
        given.pop("head_dim", None)
        given["num_key_value_heads"] = 4
    kinds = vars(usual).get("layer_types")
    if kinds:
        seen = list(dict.fromkeys(kinds))
        given["layer_types"] = [seen[index % len(seen)] for index in range(LAYERS)]
    return kind(**given | changes)


def tiny(name: str, **changes: Any) -> nn.Module:
    """Build a family's model from its tiny configuration, norms and biases random too, on the meta device if large.

    `changes` override the configuration.
    """
    config = tiny_config(name, **changes)
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config).eval()
    if sum(part.numel() for part in model.parameters()) > LARGEST:
        return model
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in model.parameters():
            if part.dim() < 2:
                part.add_(0.2 * torch.randn(part.shape, generator=draw))
    return model
