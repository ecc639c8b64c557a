"""Build the denoiser a diffusion run trains, and find or make its mask token."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from ssd_infer.errors import ConfigError, DataError, Problem, UnsupportedModelError
from ssd_infer.models.masked_diffusion import MDMConfig, MDMForMaskedLM
from ssd_train import data
from ssd_train.config.schema import HFModelConfig, Root, ScratchModelConfig
from ssd_train.data.pairs import build_pairs
from ssd_train.models import build as models
from ssd_train.recipes.diffusion.settings import DiffusionConfig

MASK_TOKEN = "<|mask|>"  # noqa: S105 - a token of text
BACKBONES = ("llama", "qwen3")
"""`model_type`s whose attention becomes bidirectional through the configuration, with any mask."""


def check(cfg: Root, recipe: DiffusionConfig) -> None:
    """Check, before any weight loads, that the model can be trained so.

    Raises ConfigError for a causal checkpoint that is not to be converted, UnsupportedModelError for a backbone that
    cannot look both ways.
    """
    config = models.model_config(cfg.model)
    if isinstance(config, MDMConfig):
        _check_denoiser(config, recipe)
        _check_positions(cfg, config)
        return
    if config.model_type not in BACKBONES:
        raise UnsupportedModelError(
            f"recipe diffusion: {config.model_type} models are not supported as backbones; "
            f"use a {' or '.join(BACKBONES)} model"
        )
    if isinstance(cfg.model, HFModelConfig) and not recipe.logit_shift:
        rule = f"is a causal {config.model_type} checkpoint, whose position i predicts token i+1"
        remedy = "set recipe.logit_shift=true to start a diffusion model from it"
        raise ConfigError([Problem("model.name", rule, cfg.model.name, remedy)])
    _check_positions(cfg, config)


def _check_positions(cfg: Root, config: PretrainedConfig) -> None:
    """Raise ConfigError where a sample is longer than the model."""
    if problems := models.position_problems(cfg, config):
        raise ConfigError(problems)


def _check_denoiser(config: MDMConfig, recipe: DiffusionConfig) -> None:
    """Raise ConfigError where a denoiser that is trained further would change its meaning."""
    problems = [
        Problem(
            f"recipe.{key}", f"differs from the checkpoint, which has {then!r}", now, f"set it to {then!r}"
        )
        for key, now, then in (
            ("logit_shift", recipe.logit_shift, config.logit_shift),
            ("block_size", recipe.block_size, config.block_size),
        )
        if now != then
    ]
    if config.mask_token_id is None:
        problems.append(Problem("model.name", "has no mask token in its configuration", None))
    if problems:
        raise ConfigError(problems)


def build_data(cfg: Root, recipe: DiffusionConfig, run_dir: Path) -> data.TextData:
    """Return the run's text with a tokenizer that has a mask token.

    A tokenizer trained here is made one entry smaller, so that with the mask token it fills `data.tokenizer_vocab`.
    """
    if recipe.objective == "llada_sft":
        pairs = build_pairs(cfg)
        _ensure_mask_token(pairs.tokenizer, recipe)
        return pairs
    trains_tokenizer = isinstance(cfg.model, ScratchModelConfig) and cfg.model.tokenizer is None
    if trains_tokenizer:
        smaller = dataclasses.replace(cfg.data, tokenizer_vocab=cfg.data.tokenizer_vocab - 1)
        cfg = dataclasses.replace(cfg, data=smaller)
    text = data.build(cfg, run_dir)
    _ensure_mask_token(text.tokenizer, recipe)
    return text


def _ensure_mask_token(tokenizer: Tokenizer, recipe: DiffusionConfig) -> None:
    """Give `tokenizer` a mask token: the one named, its own, or a new one; raises ConfigError for an unknown name."""
    wanted = recipe.mask_token
    if wanted is not None:
        if wanted not in tokenizer.get_vocab():
            rule = "must be a token of the tokenizer's vocabulary"
            remedy = "name a reserved token of it, or null to add one"
            raise ConfigError([Problem("recipe.mask_token", rule, wanted, remedy)])
        tokenizer.mask_token = wanted
    elif tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})


def build(cfg: Root, recipe: DiffusionConfig, tokenizer: Tokenizer) -> PreTrainedModel:
    """Return the denoiser in float32: from random weights drawn from the seed, or from a checkpoint of either kind."""
    inner = models.model_config(cfg.model, tokenizer)
    if isinstance(cfg.model, ScratchModelConfig):
        _check_room(inner, tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cfg.seed)
            model = MDMForMaskedLM(_config(inner, recipe, tokenizer))
            if cfg.model.scale_residual_init:
                models.scale_residual_projections(model, cfg.model.num_layers)
        return model
    assert isinstance(cfg.model, HFModelConfig)
    if isinstance(inner, MDMConfig):
        return _further(cfg.model, recipe, tokenizer)
    return _from_causal(cfg.model, recipe, tokenizer)


def _config(backbone: PretrainedConfig, recipe: DiffusionConfig, tokenizer: Tokenizer) -> MDMConfig:
    return MDMConfig(
        backbone,
        mask_token_id=tokenizer.mask_token_id,
        tie_word_embeddings=bool(getattr(backbone, "tie_word_embeddings", True)),
        **_described(recipe),
    )


def _described(recipe: DiffusionConfig) -> dict[str, Any]:
    """Return what a checkpoint says about how it was trained."""
    return {
        "objective": recipe.objective,
        "block_size": recipe.block_size,
        "logit_shift": recipe.logit_shift,
        "eps": recipe.eps,
        "order": "left_to_right" if recipe.left_to_right >= 0.5 else "confidence",
    }


def _check_room(config: PretrainedConfig, tokenizer: Tokenizer) -> None:
    """Raise DataError when the embedding has no row for the mask token."""
    rows, mask = config.vocab_size, tokenizer.mask_token_id
    if mask >= rows:
        raise DataError(
            f"model.vocab_size: the vocabulary has no room for a mask token, which needs row {mask} (got {rows}); "
            f"try model.vocab_size={mask + 1}, or name a token it has in recipe.mask_token"
        )


def _further(source: HFModelConfig, recipe: DiffusionConfig, tokenizer: Tokenizer) -> PreTrainedModel:
    """Return a denoiser to be trained further, under the objective of `recipe`; ConfigError for another mask token."""
    known = models.hf_config(source).mask_token_id
    if tokenizer.mask_token_id != known:
        rule = f"must be the checkpoint's own mask token, which has id {known}"
        raise ConfigError([Problem("recipe.mask_token", rule, tokenizer.mask_token, "leave it out")])
    model = models.pretrained(source, "float32", AutoModelForMaskedLM)
    for name, value in _described(recipe).items():
        setattr(model.config, name, value)
    return model


def _from_causal(source: HFModelConfig, recipe: DiffusionConfig, tokenizer: Tokenizer) -> PreTrainedModel:
    """Return a denoiser with the weights of a causal model (Dream, arXiv 2508.15487): no causal mask, shift kept."""
    causal: Any = models.pretrained(source, "float32", AutoModelForCausalLM)
    if tokenizer.mask_token_id >= causal.config.vocab_size:
        causal.resize_token_embeddings(tokenizer.mask_token_id + 1)
    model = MDMForMaskedLM(_config(causal.config, recipe, tokenizer))
    model.model.load_state_dict(causal.model.state_dict())
    if not model.config.tie_word_embeddings:
        model.lm_head.load_state_dict(causal.lm_head.state_dict())
    return model
