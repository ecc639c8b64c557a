"""Build the model a run trains: a configuration with random weights, or a pretrained causal language model."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ssd_infer.checkpoint.kinds import kind_of
from ssd_infer.checkpoint.load import check_loading_info
from ssd_infer.errors import CheckpointError, ConfigError, DataError, Problem, UnsupportedModelError
from ssd_train.config.schema import HFModelConfig, ModelConfig, Root, ScratchModelConfig, ScratchMoeConfig
from ssd_train.models.generation import make_saveable

FAMILIES: dict[str, str] = {
    "llama": "llama",
    "qwen3": "qwen3",
    "mistral": "mistral",
    "olmo2": "olmo2",
    "qwen3_moe": "qwen3_moe",
    "qwen2_moe": "qwen2_moe",
    "olmoe": "olmoe",
}
"""Families a model from scratch may have, with transformers' name of each."""

SKIPPABLE = frozenset(FAMILIES.values())
"""`model_type`s the decoder can split by layers: pre-tested, rotary, with `model.layers` and `model.norm`."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_RESIDUAL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def build(
    cfg: ModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int = 0, dtype: str = "float32"
) -> PreTrainedModel:
    """Return the model of `cfg` in training precision `dtype`, its random weights drawn from `seed` alone.

    Raises `DataError` when the tokenizer has more entries than the model, `CheckpointError` for a damaged checkpoint.
    """
    config = model_config(cfg, tokenizer)
    check_vocabulary(config, tokenizer, cfg)
    if isinstance(cfg, HFModelConfig):
        return pretrained(cfg, dtype)
    assert isinstance(cfg, ScratchModelConfig)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=_DTYPES[dtype])
        if cfg.scale_residual_init:
            scale_residual_projections(model, cfg.num_layers)
    return model


def model_config(cfg: ModelConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> PretrainedConfig:
    """Return transformers' configuration of `cfg` without loading any weight."""
    if isinstance(cfg, HFModelConfig):
        return hf_config(cfg)
    assert isinstance(cfg, ScratchModelConfig)
    return scratch_config(cfg, tokenizer)


def scratch_config(
    cfg: ScratchModelConfig, tokenizer: PreTrainedTokenizerBase | None = None
) -> PretrainedConfig:
    """Return the configuration of a model from scratch; special token ids come from `tokenizer`."""
    if cfg.family not in FAMILIES:
        names = ", ".join(FAMILIES)
        raise ConfigError(
            [Problem("model.family", f"must be one of {names}", cfg.family, "try model.family=llama")]
        )
    special: dict[str, Any] = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")
    }
    if cfg.family == "mistral":
        special["sliding_window"] = (
            None  # contexts here are shorter than any window, and a full cache is simpler
        )
    if isinstance(cfg, ScratchMoeConfig):
        special |= {
            "num_experts": cfg.num_experts,
            "num_experts_per_tok": cfg.experts_per_token,
            "norm_topk_prob": cfg.norm_topk_prob,
            "moe_intermediate_size": cfg.intermediate_size,
            "shared_expert_intermediate_size": cfg.shared_intermediate_size,
        }
    config: PretrainedConfig = AutoConfig.for_model(
        FAMILIES[cfg.family],
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        intermediate_size=cfg.intermediate_size,
        num_hidden_layers=cfg.num_layers,
        num_attention_heads=cfg.num_heads,
        num_key_value_heads=cfg.num_kv_heads,
        head_dim=cfg.hidden_size // cfg.num_heads,
        max_position_embeddings=cfg.max_length,
        rope_parameters={"rope_type": "default", "rope_theta": cfg.rope_theta},
        initializer_range=cfg.init_std,
        tie_word_embeddings=cfg.tie_embeddings,
        **special,
    )
    return config


def hf_config(cfg: HFModelConfig) -> PretrainedConfig:
    """Return the configuration of a hub or local checkpoint; raise `CheckpointError` when there is none."""
    path = Path(cfg.name).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        raise CheckpointError(
            f"model.name: the directory holds no config.json (got {cfg.name!r}); "
            "give a directory written by save_pretrained, such as outputs/…/checkpoints/step-N"
        )
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            cfg.name, revision=cfg.revision, trust_remote_code=cfg.trust_remote_code
        )
    except Exception as error:  # transformers and the hub client raise many types; each becomes one sentence
        raise CheckpointError(
            f"model.name: no such model on disk or on the hub (got {cfg.name!r}): {_short(error)}; "
            "check the path, the network and HF_TOKEN"
        ) from error
    return config


def check(cfg: Root) -> PretrainedConfig:
    """Check, before any weight loads, that the model decodes autoregressively; return its configuration.

    Raises `UnsupportedModelError` for one that does not.
    """
    config = model_config(cfg.model)
    if kind_of(config) == "diffusion":
        raise UnsupportedModelError(
            f"recipe {cfg.recipe_name}: a masked-diffusion checkpoint is no autoregressive model "
            f"(got model.name={getattr(cfg.model, 'name', None)!r}); train it further with +recipe=diffusion"
        )
    return config


def position_problems(cfg: Root, config: PretrainedConfig) -> list[Problem]:
    """Return a problem where a sample is longer than the model has positions."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is None or cfg.data.block_size <= limit:
        return []
    rule = f"must not exceed the model's {limit} positions"
    return [Problem("data.block_size", rule, cfg.data.block_size, f"try data.block_size={limit}")]


def check_vocabulary(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, cfg: ModelConfig) -> None:
    """Raise `DataError` when `tokenizer` can produce an id the embedding has no row for."""
    rows = config.get_text_config().vocab_size
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:
        key = "model.name" if isinstance(cfg, HFModelConfig) else "model.vocab_size"
        raise DataError(
            f"{key}: the tokenizer does not belong to the model: its highest id is {highest}, the embedding has "
            f"{rows} rows (got {getattr(cfg, 'name', rows)!r}); use the model's own tokenizer or more rows"
        )


def pretrained(
    cfg: HFModelConfig, dtype: str = "float32", auto: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """Return the model an Auto class makes of its weights; raise `CheckpointError` when they are missing or damaged."""
    check_weight_files(Path(cfg.name).expanduser())
    logging.disable_progress_bar()
    try:
        loaded: Any = auto.from_pretrained(
            cfg.name,
            revision=cfg.revision,
            trust_remote_code=cfg.trust_remote_code,
            dtype=_DTYPES[dtype],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused by name below
        )
    except Exception as error:  # as above
        raise CheckpointError(
            f"model.name: the weights cannot be loaded (got {cfg.name!r}): {_short(error)}; "
            "check the files or download the model again"
        ) from error
    model: PreTrainedModel = loaded[0]
    check_loading_info(loaded[1], cfg.name)
    make_saveable(model, cfg.name)
    return model


def check_weight_files(directory: Path) -> None:
    """Raise `CheckpointError` naming the first safetensors file of `directory` that is missing or cut short."""
    if not directory.is_dir():
        return
    index = directory / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
    for path in sorted({directory / name for name in names} | set(directory.glob("*.safetensors"))):
        problem = safetensors_problem(path)
        if problem is not None:
            raise CheckpointError(
                f"model.name: {path} {problem}; copy the file again or use another checkpoint"
            )


def safetensors_problem(path: Path) -> str | None:
    """Return what is wrong with the file's length and header, or None; tensors are not read."""
    if not path.exists():
        return "is named in the index but missing"
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8 or (length := struct.unpack("<Q", start)[0]) > size - 8:
            return f"is cut short (its header does not fit into {size} bytes)"
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except ValueError:
            return "is damaged (its header is not JSON)"
    ends = (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"is cut short or damaged ({size} bytes, its header says {expected})"


@torch.no_grad()
def scale_residual_projections(model: PreTrainedModel, num_layers: int) -> None:
    """Divide the weights that write to the residual stream by √(2L), which keeps its variance at initialisation.

    The scheme of GPT-2 (Radford et al. 2019, section 2.3); it matters for models of 32 layers and more.
    """
    for name, weight in model.named_parameters():
        if name.endswith(_RESIDUAL):
            weight.div_(math.sqrt(2 * num_layers))


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:240]
