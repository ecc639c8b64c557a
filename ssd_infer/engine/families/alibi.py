"""Families whose attention falls off with distance (ALiBi) or takes the residual stream along: BLOOM and Falcon."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.families.base import CausalFamily, Enter, Found, Parts, Sublayers, Wants
from ssd_infer.engine.families.stand_ins import RESIDUAL_ATTENTION, RESIDUAL_MLP, ZEROS
from ssd_infer.engine.window import Window

Build = Callable[..., Tensor]
"""The model's own function of a mask `(B, S)`, the number of heads and a dtype: `(B·H, 1, S)`."""


class Slopes:
    """What is added to attention scores, by head and position of the key."""

    def __init__(self, build: Build, heads: int) -> None:
        """Ask `build`, the model's own, for tables of `heads` heads."""
        self._build, self._heads = build, heads
        self._table: Tensor | None = None
        self._last: tuple[Window, Tensor] | None = None

    def at(self, window: Window, like: Tensor) -> Tensor:
        """Return `(1|B, H, 1, S)` for the keys that a pass at `window` is given, of the dtype of `like`."""
        if self._last is None or self._last[0] is not window:
            keys = window.key_positions()
            table = self._up_to(window.geometry.origin + window.geometry.capacity, like)
            self._last = window, table[:, keys].transpose(0, 1).unsqueeze(2)
        return self._last[1]

    def _up_to(self, length: int, like: Tensor) -> Tensor:
        """Return the table `(H, length)` or a longer one."""
        table = self._table
        if (
            table is None
            or table.shape[1] < length
            or (table.dtype, table.device) != (like.dtype, like.device)
        ):
            mask = torch.ones((1, length), dtype=torch.long, device=like.device)
            table = self._table = self._build(mask, self._heads, dtype=like.dtype).view(self._heads, length)
        return table


def bloom_enter(found: Found) -> Enter:
    """Return what embeds tokens and normalises them."""
    base: Any = found.base
    tokens, norm = found.embedding, base.word_embeddings_layernorm

    def enter(ids: Tensor, window: Window, cache: RowCache) -> Tensor:
        del window, cache
        hidden: Tensor = norm(tokens(ids))
        return hidden

    return enter


def bloom_wants(found: Found) -> Wants:
    """Return what hands each layer its slopes `(B·H, 1, S)`."""
    base: Any = found.base
    slopes = Slopes(base.build_alibi_tensor, int(base.num_heads))

    def wants(
        index: int, hidden: Tensor, mask: Tensor | None, window: Window, cache: RowCache
    ) -> dict[str, Any]:
        del index, mask, cache
        alibi = slopes.at(window, hidden)
        return {"alibi": alibi.expand(hidden.shape[0], -1, -1, -1).flatten(0, 1)}

    return wants


def falcon_wants(found: Found) -> Wants:
    """Return what hands each layer its slopes, which Falcon joins with the mask; None for rotary ones."""
    base: Any = found.base
    if not base.use_alibi:
        return _no_slopes
    build = sys.modules[type(base).__module__].build_alibi_tensor
    slopes, heads = Slopes(build, int(base.num_heads)), int(base.num_heads)
    scale = math.sqrt(found.config.hidden_size // heads)

    def wants(
        index: int, hidden: Tensor, mask: Tensor | None, window: Window, cache: RowCache
    ) -> dict[str, Any]:
        del index, cache
        alibi = slopes.at(window, hidden)
        assert mask is not None  # the family asks for one at every window
        joined = torch.masked_fill(alibi / scale, mask < -1, torch.finfo(hidden.dtype).min)
        return {"alibi": alibi.expand(hidden.shape[0], -1, -1, -1), "attention_mask": joined}

    return wants


def _no_slopes(
    index: int, hidden: Tensor, mask: Tensor | None, window: Window, cache: RowCache
) -> dict[str, Any]:
    del index, hidden, mask, window, cache
    return {"alibi": None}


def _bloom_stand_in(layer: nn.Module, part: str) -> nn.Module:
    del layer
    return RESIDUAL_ATTENTION if part == "attention" else RESIDUAL_MLP


def _falcon_stand_in(layer: nn.Module, part: str) -> nn.Module | None:
    del layer
    return ZEROS if part == "mlp" else None


BLOOM = CausalFamily(
    name="bloom",
    model_types=("bloom",),
    parts=Parts(embedding="word_embeddings", layers="h", norm=("ln_f",), rotary=None),
    sublayers=Sublayers(
        attention="self_attention",
        serving={"attention": ("input_layernorm",), "mlp": ("post_attention_layernorm",)},
        stand_in=_bloom_stand_in,
    ),
    interface=False,
    enter=bloom_enter,
    wants=bloom_wants,
)
FALCON = CausalFamily(
    name="falcon",
    model_types=("falcon",),
    parts=Parts(embedding="word_embeddings", layers="h", norm=("ln_f",)),
    sublayers=Sublayers(
        attention="self_attention", serving={"attention": (), "mlp": ()}, stand_in=_falcon_stand_in
    ),
    interface=False,
    masks=True,
    wants=falcon_wants,
)
