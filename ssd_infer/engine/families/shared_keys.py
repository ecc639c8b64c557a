"""Gemma 4: embeddings of each token for each layer, and late layers that attend to the keys of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.families.base import CausalFamily, Enter, Found, Wants
from ssd_infer.engine.families.scales import soft_capped
from ssd_infer.engine.window import Window

_PER_LAYER = "per_layer_inputs"
Pair = tuple[Tensor, Tensor]


class SharedKeys(MutableMapping[str, Pair]):
    """Keys and values by type of layer: those of this pass, or of the cache where their layer ran in another one."""

    def __init__(self, cache: RowCache, window: Window, stored: dict[str, int]) -> None:
        """Read and write what layers of `cache` hand on; `stored` is the layer that keeps them, by type."""
        self._cache, self._window, self._stored = cache, window, stored

    def __getitem__(self, kind: str) -> Pair:
        """Return keys and values `(B, H, S, D)` for layers of type `kind`."""
        found = self._cache.passed.get(kind) or self._cache.stored(self._stored[kind], self._window.end)
        if found is None:
            raise KeyError(kind)
        return found

    def __setitem__(self, kind: str, pair: Pair) -> None:
        """Hand `pair` on to later layers of this pass."""
        self._cache.passed[kind] = pair

    def __delitem__(self, kind: str) -> None:
        """Forget what was handed on."""
        del self._cache.passed[kind]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the types of layers."""
        return iter(self._stored)

    def __len__(self) -> int:
        """Count types of layers."""
        return len(self._stored)


def gemma4_enter(found: Found) -> Enter:
    """Return what embeds tokens, and keeps their embeddings for each layer where the model has such."""
    base: Any = found.base
    tokens, wide = found.embedding, bool(base.hidden_size_per_layer_input)

    def enter(ids: Tensor, window: Window, cache: RowCache) -> Tensor:
        hidden: Tensor = tokens(ids)
        if wide:
            own = base.get_per_layer_inputs(ids, hidden)
            cache.keep(_PER_LAYER, window, base.project_per_layer_inputs(hidden, own))
        return hidden

    return enter


def gemma4_wants(found: Found) -> Wants:
    """Return what hands each layer its own embeddings and the keys of earlier layers."""
    base: Any = found.base
    wide = bool(base.hidden_size_per_layer_input)
    attentions: list[Any] = [layer.self_attn for layer in found.layers]
    stored = {part.layer_type: at for at, part in enumerate(attentions) if part.store_full_length_kv}

    def wants(
        index: int, hidden: Tensor, mask: Tensor | None, window: Window, cache: RowCache
    ) -> dict[str, Any]:
        del hidden, mask
        own = cache.kept(_PER_LAYER, window)[:, :, index] if wide else None
        return {"per_layer_input": own, "shared_kv_states": SharedKeys(cache, window, stored)}

    return wants


def gemma4_fixed(found: Found) -> str | None:
    """Say why no sublayer of such a model can be left out."""
    base: Any = found.base
    attentions: list[Any] = [layer.self_attn for layer in found.layers]
    shared = [at for at, part in enumerate(attentions) if part.is_kv_shared_layer]
    if shared:
        return f"its layers from {shared[0]} on attend to keys of earlier layers, which must run for them"
    if base.hidden_size_per_layer_input:
        return "its layers add an embedding of their own beside attention and MLP"
    if any(not torch.equal(part, torch.ones_like(part)) for part in _scalars(found)):
        return "its layers scale the sum of their sublayers"
    return None


def _scalars(found: Found) -> list[Tensor]:
    return [layer.layer_scalar for layer in found.layers]  # type: ignore[misc]


GEMMA4 = CausalFamily(
    name="gemma4_text",
    model_types=("gemma4_text", "gemma4_unified_text"),
    enter=gemma4_enter,
    wants=gemma4_wants,
    leave=soft_capped,
    fixed=gemma4_fixed,
)
