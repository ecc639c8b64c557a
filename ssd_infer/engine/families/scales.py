"""Families that multiply embeddings or logits, or bound logits softly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.families.base import CausalFamily, Enter, Found, Leave, Sublayers
from ssd_infer.engine.window import Window


def multiplied(found: Found) -> Enter:
    """Return what embeds tokens and multiplies by `embedding_multiplier`."""
    factor, embedding = found.config.embedding_multiplier, found.embedding

    def enter(ids: Tensor, window: Window, cache: RowCache) -> Tensor:
        del window, cache
        hidden: Tensor = embedding(ids) * factor
        return hidden

    return enter


def divided(found: Found) -> Leave:
    """Return what divides logits by `logits_scaling`."""
    factor: Any = found.config.logits_scaling
    return lambda logits: logits / factor


def scaled(name: str) -> Callable[[Found], Leave]:
    """Return what makes, for a model, what multiplies logits by the number `name` of its configuration."""

    def make(found: Found) -> Leave:
        factor: Any = getattr(found.config, name)
        return lambda logits: logits * factor

    return make


def soft_capped(found: Found) -> Leave | None:
    """Return what bounds logits by `final_logit_softcapping`; None where the configuration sets none."""
    cap: Any = found.config.final_logit_softcapping
    return None if cap is None else lambda logits: torch.tanh(logits / cap) * cap


GRANITE = CausalFamily(
    name="granite", model_types=("granite", "granite_swa"), enter=multiplied, leave=divided
)
GRANITE_MOE = CausalFamily(
    name="granitemoe",
    model_types=("granitemoe", "granitemoe_swa", "granitemoeshared"),
    sublayers=Sublayers(mlp="block_sparse_moe"),
    enter=multiplied,
    leave=divided,
)
COHERE = CausalFamily(
    name="cohere",
    model_types=("cohere", "cohere2", "cohere2_moe"),
    sublayers=Sublayers(serving={"attention": (), "mlp": ()}),
    leave=scaled("logit_scale"),
)
GEMMA2 = CausalFamily(name="gemma2", model_types=("gemma2", "vaultgemma"), leave=soft_capped)
GEMMA3_TEXT = CausalFamily(name="gemma3_text", model_types=("gemma3_text",), leave=soft_capped)
