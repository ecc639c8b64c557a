"""Layer-wise access to a transformers causal language model: the full model, or any run of its own layers.

No forward code is copied: decoder layers are called as they are, with the masks, positions and cache that the base
model would hand them; only their matrix products may take torch's faster library (`products.py`). Whether that
reproduces the model is not assumed but checked once per model (`Target.of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.examine import examine
from ssd_infer.engine.kernels.products import product_view
from ssd_infer.engine.model_view import ModelView, cache_keyword
from ssd_infer.engine.positions import text_config, varying_rope
from ssd_infer.engine.window import Geometry, Rotary, Window
from ssd_infer.errors import UnsupportedModelError

_ATTENTION = {"sdpa", "eager", None}
_KINDS = {"full_attention", "sliding_attention", "attention"}
_BAND = 64
_PARTS = {
    "embed_tokens": "token embeddings",
    "layers": "single list of decoder layers",
    "norm": "final norm",
    "rotary_emb": "rotary embeddings",
}
"""What a base model must hold under these names."""


class SelfMasking(list[nn.Module]):
    """A view of layers that attend causally at the cache's window by themselves and want no masks."""


class Target(ModelView):
    """A causal LM seen as embedding → layers → norm → head; every draft view borrows these very modules."""

    def __init__(self, model: nn.Module) -> None:
        """Find the parts of `model`; raises UnsupportedModelError naming what is missing, or what is not known here."""
        super().__init__(model)
        self.name = type(model).__name__
        self.config = cast(Any, model).config
        self._check_layer_kinds()
        base = self._base(model)
        self.embed: nn.Module = base.embed_tokens
        self.rotary: nn.Module = base.rotary_emb
        self._check_rotary()
        self.layers: list[nn.Module] = [
            product_view(layer) for layer in list(base.layers)[: self.config.num_hidden_layers]
        ]
        self.norm: nn.Module = base.norm
        self.head: nn.Module = product_view(cast(Any, model).lm_head)
        self._check_attention()
        self._cache_name = cache_keyword(self.layers[0].forward)
        self.sliding = [self._sliding(index) for index in range(len(self.layers))]

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        """Entries of the output distribution."""
        return int(self.config.vocab_size)

    def geometry(self, capacity: int, origin: int = 0) -> Geometry:
        """Return the tables for a decoding of at most `capacity` slots a row, the first at position `origin`."""
        implicit = getattr(self.config, "_attn_implementation", None) == "sdpa"
        return Geometry(
            capacity,
            self.dtype,
            self.device,
            self.rotary_at,
            implicit_causal=implicit,
            band=_BAND,
            origin=origin,
        )

    def new_cache(self, batch: int, capacity: int) -> RowCache:
        """Return an empty cache for `batch` rows of at most `capacity` slots."""
        return RowCache(batch, capacity, self.num_layers)

    def run(
        self,
        hidden: Tensor,
        window: Window,
        cache: RowCache,
        first: int = 0,
        last: int | None = None,
        layers: Sequence[nn.Module | None] | None = None,
    ) -> Tensor:
        """Run layers `first..last-1` on `hidden` `(B, T, d)`; `layers` replaces the layer objects (a draft view).

        A layer that is None is passed over.
        """
        cache.aim(window)
        chosen: Sequence[nn.Module | None] = self.layers if layers is None else layers
        last = len(chosen) if last is None else last
        masked = not isinstance(layers, SelfMasking)
        common = {
            "position_ids": window.position_ids,
            "position_embeddings": window.rotary,
            "use_cache": True,
            self._cache_name: cache,
        }
        for index in range(first, last):
            layer = chosen[index]
            if layer is None:
                continue
            mask = window.mask(self.sliding[index]) if masked else None
            out = layer(hidden, attention_mask=mask, **common)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return `(…, V)` logits of un-normed hidden states `(…, d)`: final norm, then head."""
        out: Tensor = self.head(self.norm(hidden))
        return out

    def rotary_at(self, position_ids: Tensor, rotary: Callable[..., Any] | None = None) -> Rotary:
        """Return the rotary table `(B, T, D)` of `position_ids` `(B, T)`, or what `rotary` makes of them."""
        probe = torch.empty(0, dtype=self.dtype, device=self.device)
        found: Rotary = (self.rotary if rotary is None else rotary)(probe, position_ids=position_ids)
        return found

    def _base(self, model: nn.Module) -> Any:
        """Return the base model with all of `_PARTS`; raise UnsupportedModelError naming every one that is missing."""
        if text_config(model) is not self.config:
            raise self._refused("it takes more than text, and its text part is not decoded alone here")
        prefix = str(getattr(model, "base_model_prefix", "model"))
        base = getattr(model, prefix, None)
        if base is None:
            raise self._refused(f"it has no base model under the name `{prefix}`")
        owned = [(base, name, what) for name, what in _PARTS.items()]
        lost = [
            f"no {what} `{name}`"
            for owner, name, what in [*owned, (model, "lm_head", "output head")]
            if getattr(owner, name, None) is None
        ]
        if lost:
            said = lost[0] if len(lost) == 1 else f"{', '.join(lost[:-1])} and {lost[-1]}"
            raise self._refused(
                f"it has {said} (supported: decoders built like Llama, such as Qwen3, Mistral, OLMo2)"
            )
        return base

    def _refused(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.name} cannot be decoded layer by layer here: {why}")

    def _check_layer_kinds(self) -> None:
        """Raise UnsupportedModelError for layers that keep a state of their own, or attend in a way not known here."""
        foreign = sorted(set(getattr(self.config, "layer_types", None) or ()) - _KINDS)
        if foreign:
            raise self._refused(
                f"it has layers of kind {', '.join(map(repr, foreign))}, and only full and sliding attention can be "
                "verified in blocks and rolled back"
            )

    def _check_rotary(self) -> None:
        """Raise UnsupportedModelError for rotary embeddings of kinds that cannot be reproduced."""
        reason = varying_rope(self.config, self.rotary)
        if reason is not None:
            raise self._refused(reason)
        if isinstance(getattr(self.rotary, "rope_type", None), dict):
            raise self._refused("its rotary embeddings differ by layer type, and one table serves all layers")

    def _check_attention(self) -> None:
        chosen = getattr(self.config, "_attn_implementation", None)
        if chosen not in _ATTENTION:
            raise UnsupportedModelError(
                f"attention backend {chosen!r} takes no per-row masks; load the model with "
                "attn_implementation='sdpa' (or 'eager')"
            )

    def _sliding(self, index: int) -> int | None:
        """Return the sliding-attention width of layer `index`, or None for full attention."""
        width = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        if width is None or (kinds is not None and kinds[index] != "sliding_attention"):
            return None
        return int(width)

    def _check_exact(self) -> None:
        """Compare this view with the model's own forward where behaviour changes; it must be the same function."""
        examine(self)
