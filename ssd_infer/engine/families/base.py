"""What the engine must know of a family of causal models; most of it is names.

`CausalFamily()` without changes is a decoder built like Llama. Whatever a family says, the view made of it is compared
with the model's own forward before it decodes (`engine.examine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ssd_infer.checkpoint.families import Family
from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.window import Window

Enter = Callable[[Tensor, Window, RowCache], Tensor]
"""Token ids `(B, T)` at a window → hidden states `(B, T, d)` before the first layer; may keep values in the cache."""
Leave = Callable[[Tensor], Tensor]
"""What the head returns `(…, V)` → logits `(…, V)`."""
Wants = Callable[[int, Tensor, Tensor | None, Window, RowCache], dict[str, Any]]
"""Layer, its hidden states `(B, T, d)`, its mask, window and cache → arguments of that layer beside the usual ones."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a model keeps what it is made of, as attributes of the base model but for `head`."""

    base: tuple[str, ...] = ()
    """Attributes that lead from the model to the base model; empty follows `base_model_prefix`."""
    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: tuple[str, ...] = ("norm",)
    """What is applied after the last layer, in this order; parts that a model leaves out (None) are passed over."""
    rotary: str | None = "rotary_emb"
    """Rotary embeddings; None for models with another notion of position."""
    may_lack_rotary: bool = False
    """Older releases of the model turn queries and keys by themselves."""
    head: tuple[str, ...] = ("lm_head",)


@dataclass(frozen=True, slots=True)
class Sublayers:
    """What a decoder layer adds up, and how either part is left out of it."""

    attention: str = "self_attn"
    mlp: str = "mlp"
    mixer: str | None = None
    """What remembers by recurrence, in place of attention or beside it, in some layers or in all."""
    serving: Mapping[str, tuple[str, ...]] | None = None
    """Modules of a layer that serve its `attention` or `mlp` alone, and need not run without it; None looks for known
    arrangements of norms."""
    stand_in: Callable[[nn.Module, str], nn.Module | None] | None = None
    """(layer, "attention" or "mlp") → what takes its place; None for a zero that is added."""


@dataclass(frozen=True, slots=True)
class Found:
    """The parts of one model, for those functions of a family that are made once a model."""

    config: Any
    """Configuration of the text part."""
    base: nn.Module
    embedding: nn.Module
    layers: list[nn.Module]


@dataclass(frozen=True, kw_only=True)
class CausalFamily(Family):
    """How causal models of some types are taken apart; every function may be left out."""

    parts: Parts = field(default_factory=Parts)
    sublayers: Sublayers = field(default_factory=Sublayers)
    text_part: bool = False
    """The model takes more than text, and its text part is what is decoded."""
    interface: bool = True
    """Attention goes through transformers' attention interface, so that a draft may attend otherwise."""
    masks: bool = False
    """Attention does not mask by itself where it is given no mask."""
    enter: Callable[[Found], Enter] | None = None
    """What comes before the layers; None embeds tokens."""
    wants: Callable[[Found], Wants | None] | None = None
    """What a layer wants beside mask, positions, rotary table and cache."""
    leave: Callable[[Found], Leave | None] | None = None
    """What comes after the head."""
    positions: Callable[[Any], int | None] | None = None
    """Configuration → how many positions exist at all, for models that look positions up in a table."""
    unfit: Callable[[Any, list[int], int], str | None] | None = None
    """Configuration, lengths of the prompts and tokens to come → why such a request cannot be decoded exactly."""
    fixed: Callable[[Found], str | None] | None = None
    """Why no sublayer can be left out, where they depend on each other."""
    missing: str | None = None
    """Why models of these types cannot be decoded here at all."""


LIKE_LLAMA = CausalFamily(name="like llama", model_types=())
"""Tried for every model type that no family claims."""
