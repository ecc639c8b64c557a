"""Rules of the model and data nodes."""

from __future__ import annotations

import glob
import json
from pathlib import Path

from ssd_infer.config.checks import Checks
from ssd_train.config.rules_own_text import check_own_text
from ssd_train.config.rules_speech import check_speech_data, check_speech_model
from ssd_train.config.schema import (
    DataConfig,
    HFModelConfig,
    HubTextConfig,
    LocalTextConfig,
    ModelConfig,
    Root,
    ScratchModelConfig,
    ScratchMoeConfig,
    StdlibTextConfig,
)
from ssd_train.config.schema_own_text import SelfGeneratedConfig
from ssd_train.config.schema_speech import SpeechDataConfig, SpeechModelConfig

FAMILIES = ("llama", "qwen3", "mistral", "olmo2")
MOE_FAMILIES = ("qwen3_moe", "qwen2_moe", "olmoe")
CONTROL_TOKENS = ("text", "parse")
SMALLEST_VOCAB = 259
"""Bytes and special tokens: what a byte-level BPE holds before its first merge."""


def layer_count(model: ModelConfig) -> int | None:
    """Return the number of layers L when it can be known without the network, else None."""
    if isinstance(model, ScratchModelConfig):
        return model.num_layers
    if isinstance(model, HFModelConfig):
        try:
            config = json.loads((Path(model.name).expanduser() / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        layers = config.get("num_hidden_layers") if isinstance(config, dict) else None
        return layers if isinstance(layers, int) else None
    return None


def check_exits(exits: list[int] | None, layers: int | None, checks: Checks) -> None:
    """Check that every exit E satisfies 1 <= E < L; with `layers` unknown only the lower end can be checked."""
    if exits is None:
        return
    checks.require(len(exits) > 0, "exits", "must name at least one exit", exits, "null takes every layer")
    checks.require(len(set(exits)) == len(exits), "exits", "must not repeat an exit", exits)
    top = f" and below the model's {layers} layers" if layers else ""
    for index, layer in enumerate(exits):
        inside = layer >= 1 and (layers is None or layer < layers)
        remedy = f"the last exit is {layers - 1}" if layers else ""
        checks.require(inside, f"exits.{index}", f"must be at least 1{top}", layer, remedy)


def check_model(cfg: Root, checks: Checks) -> None:
    """Check the model by its kind."""
    if isinstance(cfg.model, ScratchModelConfig):
        _check_shape(cfg.model, checks)
        _check_lengths(cfg.model, cfg.data, checks)
    elif isinstance(cfg.model, HFModelConfig):
        _check_pretrained(cfg.model, checks)
    elif isinstance(cfg.model, SpeechModelConfig):
        check_speech_model(cfg.model, checks)


def _check_shape(model: ScratchModelConfig, checks: Checks) -> None:
    """Check sizes and the divisions of the attention heads."""
    routed = isinstance(model, ScratchMoeConfig)
    checks.choice("family", model.family, MOE_FAMILIES if routed else FAMILIES)
    if isinstance(model, ScratchMoeConfig):
        _check_experts(model, checks)
    sizes = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "max_length", "vocab_size")
    positive = [checks.at_least(key, getattr(model, key), 1) for key in sizes]
    checks.at_least("num_layers", model.num_layers, 2, "one layer leaves nothing to skip")
    checks.above_zero("rope_theta", model.rope_theta)
    checks.above_zero("init_std", model.init_std)
    if not all(positive):
        return
    rule = f"must divide model.hidden_size, {model.hidden_size}, into even parts"
    fits = model.hidden_size % (2 * model.num_heads) == 0
    checks.require(fits, "num_heads", rule, model.num_heads, _try(_head_counts(model), model.num_heads))
    rule = f"must divide model.num_heads, {model.num_heads}"
    divisors = [n for n in range(1, model.num_heads + 1) if model.num_heads % n == 0]
    fits = model.num_kv_heads in divisors
    checks.require(fits, "num_kv_heads", rule, model.num_kv_heads, _try(divisors, model.num_kv_heads))


def _check_experts(model: ScratchMoeConfig, checks: Checks) -> None:
    """Check 2 <= k < E, and widths that the grouped matrix product can address."""
    enough = checks.at_least(
        "experts_per_token", model.experts_per_token, 2, "a draft needs fewer than k experts"
    )
    rule = f"must exceed model.experts_per_token, {model.experts_per_token}"
    more = model.num_experts > model.experts_per_token
    checks.require(more or not enough, "num_experts", rule, model.num_experts)
    for key in ("hidden_size", "intermediate_size"):
        size = getattr(model, key)
        rule = "must be a multiple of 8 in a mixture of experts, whose matrix product needs aligned rows"
        checks.require(size % 8 == 0, key, rule, size, f"try {max(8, round(size / 8) * 8)}")
    shared = model.shared_intermediate_size
    if model.family == "qwen2_moe":
        why = "every layer of a qwen2_moe model has a shared expert; try model.intermediate_size"
        checks.at_least("shared_intermediate_size", shared, 1, why)
    else:
        rule = f"must be 0: {model.family} models have no shared expert"
        checks.require(shared == 0, "shared_intermediate_size", rule, shared, "use model.family=qwen2_moe")


def _head_counts(model: ScratchModelConfig) -> list[int]:
    """Return the head counts that leave each head an even width, as rotary embeddings need."""
    return [n for n in range(1, model.hidden_size // 2 + 1) if model.hidden_size % (2 * n) == 0]


def _try(good: list[int], near: int) -> str:
    """Suggest the member of `good` next to `near`."""
    return f"try {min(good, key=lambda n: abs(n - near))}" if good else "make model.hidden_size even"


def _check_lengths(model: ScratchModelConfig, data: DataConfig, checks: Checks) -> None:
    """Check the model against the data that flows into it."""
    rule = f"must hold one block, data.block_size = {data.block_size}"
    fits = model.max_length >= data.block_size
    checks.require(fits, "max_length", rule, model.max_length, f"try {data.block_size}")
    if model.tokenizer is not None:
        return
    rule = f"must hold the tokenizer, data.tokenizer_vocab = {data.tokenizer_vocab}"
    fits = model.vocab_size >= data.tokenizer_vocab
    checks.require(fits, "vocab_size", rule, model.vocab_size, f"try {data.tokenizer_vocab}")


def _check_pretrained(model: HFModelConfig, checks: Checks) -> None:
    """Check that a name that can only be a directory is a checkpoint."""
    checks.require(bool(model.name), "name", "must name a model", model.name, "a hub name or a directory")
    path = Path(model.name).expanduser()
    if model.name.startswith(("/", ".", "~")) or path.is_dir():
        exists = (path / "config.json").is_file()
        checks.require(exists, "name", "must be a directory with a config.json", model.name)


def check_data(data: DataConfig, checks: Checks) -> None:
    """Check the data node, first what all kinds share."""
    checks.at_least("block_size", data.block_size, 2)
    checks.at_least("validation_blocks", data.validation_blocks, 1)
    checks.at_least("tokenizer_vocab", data.tokenizer_vocab, SMALLEST_VOCAB, "try 4096")
    checks.within("validation_share", data.validation_share, 0, 1, open_end=True)
    checks.choice("control_tokens", data.control_tokens, CONTROL_TOKENS)
    if isinstance(data, StdlibTextConfig):
        checks.within("code_share", data.code_share, 0, 1)
        checks.above_zero("max_mb", data.max_mb)
    elif isinstance(data, LocalTextConfig):
        _check_files("path", data.path, checks)
        _check_files("validation_path", data.validation_path, checks)
    elif isinstance(data, SelfGeneratedConfig):
        check_own_text(data, checks)
    elif isinstance(data, SpeechDataConfig):
        check_speech_data(data, checks)
    elif isinstance(data, HubTextConfig):
        checks.require(bool(data.name), "name", "must name a dataset", data.name)
        checks.at_least("max_documents", data.max_documents, 0)


def _check_files(key: str, pattern: str | None, checks: Checks) -> None:
    """Check that a path or glob pattern matches something; no pattern is no problem."""
    if pattern is not None:
        path = Path(pattern).expanduser()
        found = path.exists() or any(glob.iglob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns too
        checks.require(found, key, "matches no file", pattern, f"looked from {Path.cwd()}")
