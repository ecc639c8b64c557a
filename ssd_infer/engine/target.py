"""Layer-wise access to a transformers causal language model: the full model, or any run of its own layers.

No forward code is copied: decoder layers are called as they are, with the masks, positions and cache that the base
model would hand them; only their matrix products may take torch's faster library (`products.py`). Where the parts are,
and what comes before and after the layers, is the family's to say (`families`). Whether that reproduces the model is
not assumed but checked once per model (`Target.of`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.families import family_of
from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.examine import examine
from ssd_infer.engine.families.base import LIKE_LLAMA, CausalFamily, Found
from ssd_infer.engine.families.parts import base_of, chain_of, one_after_another
from ssd_infer.engine.kernels.products import product_view
from ssd_infer.engine.model_view import ModelView, cache_keyword
from ssd_infer.engine.positions import text_config, varying_rope
from ssd_infer.engine.recurrent import RecurrentCache, outdated_reason, with_states
from ssd_infer.engine.rotary import RotaryTables, VaryingRotary, prompt_tables
from ssd_infer.engine.window import Chunk, Geometry, Reach, Rotary, Window
from ssd_infer.errors import UnsupportedModelError

_ATTENTION = {"sdpa", "eager", None}
_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_BAND = 64


class SelfMasking(list[nn.Module]):
    """A view of layers that attend causally at the cache's window by themselves and want no masks."""


class Target(ModelView):
    """A causal LM seen as embedding → layers → norm → head; every draft view borrows these very modules."""

    def __init__(self, model: nn.Module) -> None:
        """Find the parts of `model`; raises UnsupportedModelError naming what is missing, or what is not known here."""
        super().__init__(model)
        self.name = type(model).__name__
        own: Any = cast(Any, model).config
        self.family = cast(CausalFamily, family_of(getattr(own, "model_type", None)) or LIKE_LLAMA)
        if self.family.missing is not None:
            raise self._refused(self.family.missing)
        self.config = text_config(model) if self.family.text_part else own
        self._check_layer_kinds()
        self._check_text(model)
        parts, base = self.family.parts, self._base(model)
        self.embedding: nn.Module = getattr(base, parts.embedding)
        self.rotary: nn.Module | None = None if parts.rotary is None else getattr(base, parts.rotary, None)
        layers = list(getattr(base, parts.layers))[: self.config.num_hidden_layers]
        mixer = self.family.sublayers.mixer
        if (outdated := outdated_reason(layers, mixer)) is not None:
            raise self._refused(outdated)
        self.layers: list[nn.Module] = [with_states(product_view(layer), mixer) for layer in layers]
        self.norm: nn.Module = one_after_another(base, parts.norm)
        self.head: nn.Module = product_view(chain_of(model, parts.head))
        self._check_attention()
        self._cache_name = cache_keyword(self.layers[0].forward)
        self.reach = [self._reach(index) for index in range(len(self.layers))]
        self.kinds = self._kinds()
        self._varying = self._varying_rotary()
        self._key_shape: tuple[int, int] | None = None
        self.limit = None if self.family.positions is None else self.family.positions(self.config)
        """How many positions exist, for models that look them up in a table."""
        self._follow(Found(self.config, base, self.embedding, self.layers))

    def _follow(self, found: Found) -> None:
        """Make those functions of the family that depend on the model."""
        family = self.family
        self._enter = None if family.enter is None else family.enter(found)
        self._wants = None if family.wants is None else family.wants(found)
        self._leave = None if family.leave is None else family.leave(found)
        self.fixed = None if family.fixed is None else family.fixed(found)
        """Why no sublayer can be left out; None where nothing is known against it."""

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        """Entries of the output distribution."""
        return int(self.config.vocab_size)

    @property
    def recurrent(self) -> bool:
        """Tell whether layers keep recurrent states, which rows of a cache carry beside keys and values."""
        return self.family.sublayers.mixer is not None

    @property
    def varies(self) -> bool:
        """Tell whether rotary tables follow the longest position of a pass."""
        return bool(self._varying)

    def geometry(self, capacity: int, origin: int = 0, prompts: Sequence[int] = ()) -> Geometry:
        """Return the tables for a decoding of at most `capacity` slots a row, the first at position `origin`.

        `prompts` are the lengths of the rows' prompts, by which some rotary embeddings encode them.
        """
        implicit = getattr(self.config, "_attn_implementation", None) == "sdpa"
        return Geometry(
            capacity,
            self.dtype,
            self.device,
            self._tables(capacity, origin, prompts),
            implicit_causal=implicit,
            band=_BAND,
            origin=origin,
            masks=self.family.masks,
        )

    def new_cache(self, batch: int, capacity: int) -> RowCache:
        """Return an empty cache for `batch` rows of at most `capacity` slots."""
        kind = RecurrentCache if self.recurrent else RowCache
        return kind(batch, capacity, self.num_layers)

    def unfit_reason(self, prompts: Sequence[int], new: int) -> str | None:
        """Return why `new` tokens after prompts of these lengths cannot be decoded exactly; None where they can."""
        longest = max(prompts, default=0) + new - 1
        if self.limit is not None and longest > self.limit:
            return f"it has {self.limit} positions, and this text may need {longest}"
        return None if self.family.unfit is None else self.family.unfit(self.config, list(prompts), new)

    def check_fit(self, prompts: Sequence[int], new: int) -> None:
        """Raise UnsupportedModelError where `new` tokens after prompts of these lengths cannot be decoded exactly."""
        reason = self.unfit_reason(prompts, new)
        if reason is not None:
            raise self._refused(reason)

    @torch.inference_mode()
    def key_shape(self) -> tuple[int, int]:
        """Return how many heads of keys the first layer stores, and their size, as a pass of one token leaves them.

        Configurations name them in ways of their own, or not at all.
        """
        if self._key_shape is None:
            cache, window = self.new_cache(1, 1), Window(self.geometry(1), [0], 1)
            ids = torch.zeros((1, 1), dtype=torch.long, device=self.device)
            self.run(self.embed_at(ids, window, cache), window, cache, 0, 1)
            keys = cache.held(0)[0]
            self._key_shape = int(keys.shape[1]), int(keys.shape[3])
        return self._key_shape

    def embed_at(self, ids: Tensor, window: Window, cache: RowCache) -> Tensor:
        """Return hidden states `(B, T, d)` before the first layer, of token ids `(B, T)` at `window`.

        Families may keep values of these tokens in `cache`, which the layers of a later `run` ask for.
        """
        hidden: Tensor = self.embedding(ids) if self._enter is None else self._enter(ids, window, cache)
        return hidden

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
        if first >= last:
            return hidden
        masked = not isinstance(layers, SelfMasking)
        common = {"position_ids": window.position_ids, "use_cache": True, self._cache_name: cache}
        wants, kind = self._wants, self.kinds[first]
        if self.rotary is not None:
            common["position_embeddings"] = window.rotary(kind)
        for index in range(first, last):
            layer = chosen[index]
            if layer is None:
                continue
            if self.kinds[index] != kind:
                kind = self.kinds[index]
                common["position_embeddings"] = window.rotary(kind)
            mask = window.mask(self.reach[index]) if masked else None
            if wants is None:
                out = layer(hidden, attention_mask=mask, **common)
            else:
                more = wants(index, hidden, mask, window, cache)
                out = layer(hidden, **{"attention_mask": mask, **common, **more})
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return `(…, V)` logits of un-normed hidden states `(…, d)`: final norm, head, and what comes after it."""
        out: Tensor = self.head(self.norm(hidden))
        return self.leave(out)

    def normed(self, hidden: Tensor) -> Tensor:
        """Return what the head is given for un-normed hidden states `(…, d)`."""
        out: Tensor = self.norm(hidden)
        return out

    def leave(self, logits: Tensor) -> Tensor:
        """Return what comes after the head, of `(…, V)` that it returned; a family may scale or bound logits there."""
        return logits if self._leave is None else self._leave(logits)

    def rotary_at(self, position_ids: Tensor, kind: str | None = None) -> Rotary:
        """Return the rotary table `(B, T, D)` of `position_ids` `(B, T)` for layers of `kind`, in one pass."""
        if self.rotary is None:
            raise ValueError("this model has no rotary embeddings")
        return self.ask(self.rotary, position_ids, kind)

    def ask(self, rotary: nn.Module, position_ids: Tensor, kind: str | None = None) -> Rotary:
        """Return what `rotary`, the model's module or a copy, makes of `position_ids` for layers of `kind`."""
        probe = torch.empty(0, dtype=self.dtype, device=self.device)
        more = {} if kind is None else {"layer_type": kind}
        found: Rotary = rotary(probe, position_ids=position_ids, **more)
        return found

    def _tables(self, capacity: int, origin: int, prompts: Sequence[int]) -> RotaryTables | None:
        if self.rotary is None:
            return None
        kinds = dict.fromkeys(self.kinds)
        if self._varying:
            span = origin, origin + capacity
            usual = {kind: one.steps(*span, self.device, self.dtype) for kind, one in self._varying.items()}
            return RotaryTables(usual, prompt_tables(self._varying, prompts, origin, self.device))
        positions = torch.arange(origin, origin + capacity, device=self.device).unsqueeze(0)
        return RotaryTables({kind: self.rotary_at(positions, kind) for kind in kinds}, {})

    def _varying_rotary(self) -> dict[str | None, VaryingRotary]:
        """Return how each type of layer is encoded, where that follows the longest position of a pass."""
        if self.rotary is None or varying_rope(self.config, self.rotary) is None:
            return {}
        kinds = dict.fromkeys(self.kinds)
        return {kind: VaryingRotary(self.rotary, self.config, self.ask, kind) for kind in kinds}

    def _base(self, model: nn.Module) -> Any:
        found = base_of(model, self.family.parts)
        if isinstance(found, str):
            raise self._refused(found)
        return found

    def _refused(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.name} cannot be decoded layer by layer here: {why}")

    def _check_text(self, model: nn.Module) -> None:
        if not self.family.text_part and text_config(model) is not self.config:
            raise self._refused("it takes more than text, and its text part is not decoded alone here")

    def _check_layer_kinds(self) -> None:
        """Raise UnsupportedModelError for layers that keep a state of their own, or attend in a way not known here."""
        foreign = sorted(set(getattr(self.config, "layer_types", None) or ()) - _KINDS)
        if foreign and not self.recurrent:
            raise self._refused(
                f"it has layers of kind {', '.join(map(repr, foreign))}, and only full, sliding and chunked attention "
                "can be verified in blocks and rolled back"
            )

    def _check_attention(self) -> None:
        chosen = getattr(self.config, "_attn_implementation", None)
        if chosen not in _ATTENTION:
            raise UnsupportedModelError(
                f"attention backend {chosen!r} takes no per-row masks; load the model with "
                "attn_implementation='sdpa' (or 'eager')"
            )

    def _kinds(self) -> list[str | None]:
        """Return the type of each layer where rotary tables differ by it, None for every layer where they do not."""
        types = getattr(self.config, "layer_types", None)
        asked = self.rotary is not None and "layer_type" in inspect.signature(self.rotary.forward).parameters
        return list(types[: len(self.layers)]) if asked and types else [None] * len(self.layers)

    def _reach(self, index: int) -> Reach:
        """Return how far back layer `index` attends: a width, a chunk, or None for everything."""
        kinds = getattr(self.config, "layer_types", None)
        if kinds is not None and kinds[index] == "chunked_attention":
            return Chunk(int(self.config.attention_chunk_size))
        width = getattr(self.config, "sliding_window", None)
        if width is None or (kinds is not None and kinds[index] != "sliding_attention"):
            return None
        return int(width)

    def _check_exact(self) -> None:
        """Compare this view with the model's own forward where behaviour changes; it must be the same function."""
        examine(self)
