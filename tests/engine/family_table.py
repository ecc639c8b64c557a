"""Which families decode exactly with which drafts: tiny random models against transformers' generate, row by row.

`scripts/check_families.py` makes the table of docs/families.md from this.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import ssd_infer
from ssd_infer.checkpoint.families import family_of
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, SSDError, UnsupportedModelError
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.sublayer_costs import SublayerCosts, remember_costs
from tests.engine.causal_families import LAYERS, VOCAB, tiny, tiny_config

NEW, ROWS, LONGEST, WINDOW = 16, 8, 23, 8
_SKIPS = {"skip_attention": [2], "skip_mlp": [3], "confidence": 0.0}
_SWIFT = {"share": 1.0, "fruitless": 1.0, "worth": 1.0, "confidence": 0.0, "window": 8}
_SPARSE = {"selector": "pillar", "ratio": 0.5, "min_budget": 4, "cold_start": "dense", "adapt": False}
_FEWER = {"k_draft": 1, "confidence": 0.0, "at_hand": False, "prefetch": False, "follow": False}
DRAFTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "early_exit": {"exit_layer": 2},
    "early_exit+ngram": {"exit_layer": 2, "copy": 4, "trust": 2},
    "skip_set": _SKIPS,
    "swift": _SWIFT,
    "sparse_attention": _SPARSE,
    "reduced_experts": _FEWER,
}
GAMMAS = (4, 1, 8)
_DEEP = (
    "o_proj",
    "down_proj",
    "dense",
    "c_proj",
    "out_proj",
    "fc2",
    "fc_out",
    "dense_4h_to_h",
    "output_linear",
)
_MORE = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_self_attn_layernorm")
_MIXED = ["sliding_attention", "full_attention"] * (LAYERS // 2)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One line of the table: a type of model, and how it differs from the usual one."""

    title: str
    model_type: str
    changes: dict[str, Any]


def _cases() -> Iterator[Case]:
    """Yield the families people have, and their variants."""
    usual: dict[str, dict[str, dict[str, Any]]] = {
        "llama": {"Llama": {}, "Llama, tied": {"tie_word_embeddings": True}, "Llama, biased": _BIASED},
        "llama4_text": {"Llama 4 text": {"attention_chunk_size": 8, "no_rope_layers": [1, 1, 1, 0]}},
        "mistral": {"Mistral, sliding": {"sliding_window": WINDOW}},
        "ministral3": {"Ministral 3": {}},
        "mistral3": {"Mistral 3, text part": {}},
        "qwen2": {"Qwen2": {}, "Qwen2, sliding": {"use_sliding_window": True, "layer_types": _MIXED}},
        "qwen3": {"Qwen3": {}},
        "qwen2_moe": {"Qwen2-MoE": {}},
        "qwen3_moe": {"Qwen3-MoE": {}},
        "gemma": {"Gemma": {}},
        "gemma2": {"Gemma 2": {}},
        "gemma3_text": {"Gemma 3 text": {}, "Gemma 3 text, soft cap": {"final_logit_softcapping": 2.0}},
        "gemma3": {"Gemma 3, text part": {}},
        "gemma4_text": {
            "Gemma 4 text": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
            "Gemma 4 text, inputs for each layer": {"num_kv_shared_layers": 0},
            "Gemma 4 text, shared keys": {"num_kv_shared_layers": 2},
            "Gemma 4 text, experts": _GEMMA4_MOE,
        },
        "vaultgemma": {"VaultGemma": {}},
        "phi": {"Phi": {}},
        "phi3": {"Phi3": {}},
        "olmo": {"OLMo": {}},
        "olmo2": {"OLMo 2": {}},
        "olmo3": {"OLMo 3": {}},
        "olmoe": {"OLMoE": {}},
        "smollm3": {"SmolLM3": {}},
        "granite": {"Granite": {}},
        "granitemoe": {"Granite-MoE": _SCALED},
        "cohere": {"Cohere": {}},
        "cohere2": {"Cohere 2": {}},
        "falcon": {
            "Falcon": {},
            "Falcon, sequential, ALiBi": {"alibi": True, "parallel_attn": False},
            "Falcon, new architecture": {"new_decoder_architecture": True},
        },
        "gpt_neox": {"GPT-NeoX": {}, "GPT-NeoX, sequential": {"use_parallel_residual": False}},
        "gpt2": {"GPT-2": {}},
        "gptj": {"GPT-J": {}},
        "opt": {
            "OPT": {},
            "OPT, norms after, projected": {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
        },
        "bloom": {"BLOOM": {}, "BLOOM, normed residual": {"apply_residual_connection_post_layernorm": True}},
        "starcoder2": {"StarCoder2, sliding": {}},
        "stablelm": {"Stable LM": {}, "Stable LM, parallel": {"use_parallel_residual": True}},
        "glm4": {"GLM 4": {}},
        "deepseek_v2": {"DeepSeek-V2": {}},
        "deepseek_v3": {"DeepSeek-V3": {}},
        "mixtral": {"Mixtral": {}},
        "gpt_oss": {"gpt-oss, 4 of 32 experts": {"num_local_experts": 32, "num_experts_per_tok": 4}},
        "ernie4_5": {"ERNIE 4.5": {}},
        "nemotron": {"Nemotron": {}},
        "exaone4": {"EXAONE 4": {}},
        "minimax_m2": {"MiniMax-M2": {}},
        "hunyuan_v1_dense": {"Hunyuan dense": {}},
        "helium": {"Helium": {}},
        "seed_oss": {"Seed-OSS": {}},
        "qwen3_next": {"Qwen3-Next, routed": _states("linear_attention")},
        "qwen3_5_text": {"Qwen3.5 text": _states("linear_attention")},
        "qwen3_5_moe_text": {"Qwen3.5 text, routed": _states("linear_attention")},
        "lfm2": {"LFM2": _states("conv")},
        "granitemoehybrid": {
            "Granite-MoE-hybrid": _states("linear_attention") | _SCALED,
            "Granite-MoE-hybrid, rotary": _states("linear_attention") | {"position_embedding_type": "rope"},
        },
        "falcon_h1": {"Falcon-H1": {}},
        "bamba": {"Bamba": {"attn_layer_indices": [1, 3]}},
        "nemotron_h": {"Nemotron-H": _NEMOTRON},
        "mamba2": {"Mamba 2": {}},
    }
    for model_type, variants in usual.items():
        yield from (Case(title, model_type, changes) for title, changes in variants.items())


def _states(kind: str) -> dict[str, Any]:
    """Return changes for layers that remember by recurrence and attend in turn, `kind` being the former."""
    return {"layer_types": [kind, "full_attention"] * (LAYERS // 2)}


_GEMMA4_MOE = {
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}
_BIASED = {"attention_bias": True, "mlp_bias": True}
_SCALED = {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
_NEMOTRON = {"layers_block_type": ["linear_attention", "full_attention", "moe", "linear_attention"]}
REFUSED = {
    "Gemma 3n text": "gemma3n_text",
    "Zamba2": "zamba2",
}
"""Families that cannot be decoded here, by title."""
CASES = tuple(case for case in _cases() if case.model_type in CONFIG_MAPPING)


@functools.lru_cache(maxsize=4)
def built(case: Case) -> Any:
    """Build a case's model; its deep layers add little, so that drafts are often right."""
    model = (
        _with_images(case)
        if case.model_type in ("gemma3", "mistral3")
        else tiny(case.model_type, **case.changes)
    )
    quiet = tuple(f"{name}.weight" for name in (*_DEEP, *_MORE))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(quiet) and any(f".{layer}." in name for layer in range(2, LAYERS)):
                weight.mul_(0.2)
    return model


def _with_images(case: Case) -> nn.Module:
    """Build a model that takes images too, from a tiny text part and a tiny vision part."""
    kind = CONFIG_MAPPING[case.model_type]
    text = tiny_config("gemma3_text" if case.model_type == "gemma3" else "mistral", **case.changes)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = kind(
        text_config=text.to_dict(), vision_config={"model_type": _VISION[case.model_type], **vision}
    )
    torch.manual_seed(0)
    model: nn.Module = AutoModelForImageTextToText.from_config(config).eval().float()
    return model


_VISION = {"gemma3": "siglip_vision_model", "mistral3": "pixtral"}


def recurrent(model_type: str) -> bool:
    """Tell whether models of a type keep recurrent states."""
    family: Any = family_of(model_type)
    return family is not None and family.sublayers.mixer is not None


def prompts() -> list[list[int]]:
    """Return prompts of different lengths, some of which repeat themselves, most of them longer than windows."""
    draw = torch.Generator().manual_seed(5)
    rows = []
    for row in range(ROWS):
        length = LONGEST - 3 * row + row // 2
        pattern = torch.randint(3, VOCAB, (5 if row % 2 else length,), generator=draw).tolist()
        rows.append((pattern * length)[:length])
    return rows


@functools.lru_cache(maxsize=4)
def references(case: Case) -> list[list[int]]:
    """Return what transformers' generate adds to each prompt alone, greedily."""
    return [alone(built(case), row, NEW) for row in prompts()]


@torch.inference_mode()
def alone(model: Any, row: list[int], new: int) -> list[int]:
    """Return what transformers' generate adds to one prompt."""
    ids = torch.tensor([row])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return list(out[0, len(row) :].tolist())


def price(model: nn.Module) -> None:
    """Pretend that drafts are cheap, so that a draft which searches while it decodes does draft."""
    target = Target.of(model)
    whole = Costs((1, 17), (20.0, 20.0), (0.0, 0.0), target.num_layers)
    for power in range(4):
        remember_costs(target, SublayerCosts(whole, 10.0, 10.0), False, 1 << power)


@dataclass(slots=True)
class Outcome:
    """What one draft does on one family: `said` is exact, or the reason of its refusal."""

    said: str
    drafted: int = 0
    accepted: int = 0

    @property
    def exact(self) -> bool:
        """Whether it was not refused."""
        return self.said == "exact"


def check(case: Case, draft: str | None, turn: int = 0) -> Outcome:
    """Decode a ragged batch with EOS inside a block, and one row alone; AssertionError for any wrong token.

    `turn` chooses the draft lengths.
    """
    model, expected = built(case), references(case)
    eos = expected[0][NEW // 2]
    out = Outcome("exact")
    for rows, gamma, stops in (
        (range(ROWS), GAMMAS[turn % 3], [eos]),
        (range(2, 3), GAMMAS[(turn + 1) % 3], []),
    ):
        wanted = [_until(expected[row], stops) for row in rows]
        try:
            found = decode(model, [prompts()[row] for row in rows], draft, gamma, stops)
        except (UnsupportedModelError, ConfigError) as error:
            return Outcome(reason(error))
        assert found.sequences == wanted, (case.title, draft, gamma)
        out.drafted += found.stats.total.drafted
        out.accepted += found.stats.total.accepted
    return out


def decode(model: Any, rows: list[list[int]], draft: str | None, gamma: int, stops: list[int]) -> Any:
    """Return what the engine makes of `rows`."""
    params = dict(DRAFTS[draft])
    if draft is not None:
        params["gamma"] = gamma
    return ssd_infer.generate(
        model,
        rows,
        draft=draft,
        draft_params=params or None,
        max_new_tokens=NEW,
        eos_token_id=stops,
        generation_rules="off",
    )


def reason(error: SSDError) -> str:
    """Return why a family or a draft was refused, without what names it."""
    said = error.problems[0].rule if isinstance(error, ConfigError) else str(error)
    return said.rpartition("layer by layer here: ")[2].removeprefix("does not apply to this model: ")


def _until(tokens: list[int], stops: list[int]) -> list[int]:
    """Return `tokens` up to the first of `stops`, which is the last one kept."""
    end = next((at + 1 for at, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]
