"""Layer-wise access to a transformers causal language model: the full model, or any run of its own layers.

No forward code is copied: decoder layers are called as they are, with the masks, positions and cache that the base
model would hand them; only their matrix products may take torch's faster library (`products.py`). Whether that
reproduces the model is not assumed but checked once per model (`Target.of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.model_view import ModelView, cache_keyword, evaluating
from ssd_infer.engine.products import product_view
from ssd_infer.engine.window import Geometry, Rotary, Window
from ssd_infer.errors import UnsupportedModelError

_FIXED_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}
_ATTENTION = {"sdpa", "eager", None}
_BAND = 64


class SelfMasking(list[nn.Module]):
    """A view of layers that attend causally at the cache's window by themselves and want no masks."""


class Target(ModelView):
    """A causal LM seen as embedding → layers → norm → head; every draft view borrows these very modules."""

    def __init__(self, model: nn.Module) -> None:
        """Find the parts of `model`; raises UnsupportedModelError naming the first missing one."""
        super().__init__(model)
        self._name = type(model).__name__
        self.config = cast(Any, model).config
        base = self._part(model, getattr(model, "base_model_prefix", "model"), "a base model")
        self.embed: nn.Module = self._part(base, "embed_tokens", "token embeddings `embed_tokens`")
        layers = list(self._part(base, "layers", "decoder layers in one list `layers`"))
        self.layers: list[nn.Module] = [
            product_view(layer) for layer in layers[: self.config.num_hidden_layers]
        ]
        self.norm: nn.Module = self._part(base, "norm", "a final `norm`")
        self._rotary: nn.Module = self._part(base, "rotary_emb", "rotary embeddings `rotary_emb`")
        self.head: nn.Module = product_view(self._part(model, "lm_head", "an output head `lm_head`"))
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

    def geometry(self, capacity: int) -> Geometry:
        """Return the tables for a decoding that never exceeds `capacity` slots a row."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        fixed = rope.get("rope_type", "default") in _FIXED_ROPE
        implicit = getattr(self.config, "_attn_implementation", None) == "sdpa"
        return Geometry(
            capacity,
            self.dtype,
            self.device,
            self._rotary_at,
            rotary_is_table=fixed,
            implicit_causal=implicit,
            band=_BAND,
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

    def _rotary_at(self, position_ids: Tensor) -> Rotary:
        probe = torch.empty(0, dtype=self.dtype, device=self.device)
        found: Rotary = self._rotary(probe, position_ids=position_ids)
        return found

    def _part(self, owner: nn.Module, name: str, what: str) -> Any:
        part = getattr(owner, name, None)
        if part is None:
            raise UnsupportedModelError(
                f"{self._name} cannot draft for itself here: it has no {what} "
                "(supported: Llama-type decoders such as Llama, Qwen3, Mistral, OLMo2)"
            )
        return part

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

    @torch.inference_mode()
    def _check_exact(self) -> None:
        """Compare this view with the model's own forward on four tokens; it must be the same function."""
        ids = torch.arange(4, device=self.device).unsqueeze(0) % self.vocab_size
        cache, geometry = self.new_cache(1, 4), self.geometry(4)
        model = self.model
        with evaluating(model):
            expected = model(input_ids=ids, use_cache=False).logits
            hidden = self.run(self.embed(ids[:, :3]), Window(geometry, [0], 3), cache)
            tail = self.run(self.embed(ids[:, 3:]), Window(geometry, [3], 1), cache)
            found = self.logits(torch.cat([hidden, tail], dim=1))
        scale = float(expected.float().abs().max()) + 1e-6
        error = float((expected.float() - found.float()).abs().max()) / scale
        if not error <= max(1e-4, 8 * torch.finfo(self.dtype).eps):
            raise UnsupportedModelError(
                f"{self._name} cannot draft for itself here: running its layers one by one differs from its own "
                f"forward by {error:.1e} of the largest logit (it does something between layers that we omit)"
            )
