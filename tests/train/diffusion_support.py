"""Tiny denoisers and configurations for the tests of diffusion training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssd_infer.models.masked_diffusion import MDMConfig, MDMForMaskedLM
from ssd_train.config.schema import Root
from ssd_train.recipes.diffusion.settings import AgreementConfig, DiffusionConfig
from tests.train.support import VOCAB, tiny_llama, tiny_root

MASK = VOCAB - 1

OBJECTIVES: dict[str, DiffusionConfig] = {
    "mdlm": DiffusionConfig(objective="mdlm", block_size=0),
    "llada": DiffusionConfig(objective="llada", block_size=0),
    "llada_sft": DiffusionConfig(objective="llada_sft", block_size=0),
    "bd3lm": DiffusionConfig(block_size=4),
    "complementary_block": DiffusionConfig(objective="complementary_block", block_size=4, logit_shift=True),
    "drafts": DiffusionConfig(
        block_size=4,
        left_to_right=0.5,
        copies=2,
        agreement=AgreementConfig(pair_weight=0.5, own_weight=0.5, own_start=0.0),
        chunk_tokens=13,
    ),
    "shifted": DiffusionConfig(
        block_size=4,
        left_to_right=1.0,
        logit_shift=True,
        causal_share=0.3,
        agreement=AgreementConfig(own_weight=0.5, own_start=0.0),
    ),
}
"""One recipe for each objective, and one with everything that makes drafts agree."""


def tiny_denoiser(config: DiffusionConfig, dtype: torch.dtype = torch.float64) -> MDMForMaskedLM:
    """Return a small denoiser for `config`, its weights large enough to matter."""
    backbone = tiny_llama().config
    torch.manual_seed(0)
    wrapped = MDMConfig(
        backbone,
        mask_token_id=MASK,
        objective=config.objective,
        block_size=config.block_size,
        logit_shift=config.logit_shift,
        order="left_to_right" if config.left_to_right else "confidence",
    )
    return MDMForMaskedLM(wrapped).to(dtype)


def diffusion_root(directory: Path, config: DiffusionConfig, **train: Any) -> Root:
    """Return a short diffusion run on a small text below `directory`."""
    cfg = tiny_root(directory, plain=True, **{"max_steps": 6, **train})
    return replace(
        cfg, recipe_name="diffusion", recipe=config, model=replace(cfg.model, num_layers=2, vocab_size=300)
    )
