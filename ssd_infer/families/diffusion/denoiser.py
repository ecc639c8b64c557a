"""Layer-wise access to a masked-diffusion model, so that one call can hold many drafted states of a block.

No forward code is copied: the backbone's layers are called as they are, with masks, positions and cache of our own.
Whether that reproduces the model is checked once per model (`Denoiser.of`).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.kinds import kind_of
from ssd_infer.engine.kernels.products import product_view
from ssd_infer.engine.model_view import ModelView, cache_keyword, evaluating
from ssd_infer.engine.positions import loose_copy, switches, table_shift, varying_rope
from ssd_infer.errors import ConfigError, Problem, UnsupportedModelError

_PROBE = 24

_ROWS = 64
"""Positions a pass usually has."""


class Denoiser(ModelView):
    """A masked-diffusion LM seen as embedding → layers → norm → head; shares the model's own modules."""

    def __init__(self, model: nn.Module) -> None:
        """Find the parts of `model`; ConfigError for another kind, UnsupportedModelError for a missing part."""
        config: Any = getattr(model, "config", None)
        if kind_of(config) != "diffusion":
            rule = "must be a masked-diffusion model (model_type ssd_masked_diffusion)"
            remedy = "this one decodes autoregressively; use ssd_infer.generate"
            raise ConfigError([Problem("model", rule, getattr(config, "model_type", None), remedy)])
        if config.mask_token_id is None:
            rule = "must name the vocabulary's mask token"
            raise ConfigError(
                [Problem("mask_token_id", rule, None, "set config.mask_token_id to the id trained with")]
            )
        super().__init__(model)
        backbone: Any = model.model
        self.config = config
        self.mask = int(config.mask_token_id)
        self.shift = bool(config.logit_shift)
        self.block_causal = bool(config.block_causal)
        self.vocab_size = int(config.vocab_size)
        self.embedding: nn.Module = backbone.get_input_embeddings()
        self.layers = [product_view(layer, _ROWS) for layer in _layers(backbone, type(model).__name__)]
        self.norm: nn.Module = backbone.norm
        self.head: nn.Module = product_view(model.get_output_embeddings(), _ROWS)  # type: ignore[operator]
        self._rotary: Any = backbone.rotary_emb
        self._cache_name = cache_keyword(self.layers[0].forward)
        self._check_attention(backbone.config)

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the tables `(length, D)` of cosines and sines for positions from 0 on."""
        positions = torch.arange(length, device=self.device)[None]
        cos, sin = self._tables(self._rotary, positions)
        return cos[0], sin[0]

    def _tables(self, rotary: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
        probe = torch.empty(0, dtype=self.dtype, device=self.device)
        found: tuple[Tensor, Tensor] = rotary(probe, position_ids=positions)
        return found

    def run(
        self, ids: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any
    ) -> Tensor:
        """Return normed hidden states `(B, N, d)` of `ids` `(B, N)` at `positions` `(B, N)`.

        `mask` `(B|1, 1, N, K)` is additive over cached and new keys, None where all see all; `cache` stands in for
        transformers' own and may be None.
        """
        hidden = self.embedding(ids)
        extra: dict[str, Any] = {
            "attention_mask": mask,
            "position_ids": positions,
            "position_embeddings": (tables[0][positions], tables[1][positions]),
            "use_cache": cache is not None,
            "is_causal": False,
            self._cache_name: cache,
        }
        for layer in self.layers:
            out = layer(hidden, **extra)
            hidden = out[0] if isinstance(out, tuple) else out
        return cast(Tensor, self.norm(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return `(M, V)` logits of normed states `(M, d)`; the mask token cannot be predicted."""
        logits: Tensor = self.head(hidden)
        logits[:, self.mask] = torch.finfo(logits.dtype).min
        return logits

    def _check_attention(self, config: Any) -> None:
        chosen = getattr(config, "_attn_implementation", None)
        if chosen not in ("sdpa", "eager", None):
            raise UnsupportedModelError(
                f"attention backend {chosen!r} takes no masks of ours; load with attn_implementation='sdpa' or 'eager'"
            )
        if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            raise UnsupportedModelError(
                "a diffusion backbone with sliding attention cannot be decoded block by block"
            )
        if (reason := varying_rope(config, self._rotary)) is not None:
            raise UnsupportedModelError(f"this diffusion backbone cannot be decoded block by block: {reason}")

    def _check_tables(self) -> None:
        """Raise UnsupportedModelError where the rotary table of a position depends on the rest of the canvas."""
        rotary, places = loose_copy(self._rotary), switches(cast(Any, self.model).model.config)
        shift = table_shift(lambda at: self._tables(rotary, at), places, self.device)
        if not shift <= max(1e-5, torch.finfo(self.dtype).eps):
            raise UnsupportedModelError(
                "this diffusion backbone cannot be decoded block by block: its rotary embeddings of a position depend "
                f"on the other positions of a pass (they differ by {shift:.1e})"
            )

    @torch.inference_mode()
    def _check_exact(self) -> None:
        """Compare this view with the model's own forward on a short canvas; it must be the same function."""
        self._check_tables()
        model: Any = self.model
        block = self.config.block_size if self.block_causal else 0
        ids = torch.arange(_PROBE, device=self.device)[None] % self.vocab_size
        with evaluating(model):
            expected = model(input_ids=ids).logits[0]
            positions = torch.arange(_PROBE, device=self.device)
            mask = None
            if block:
                later = positions[None] // block > positions[:, None] // block
                mask = torch.zeros(later.shape, dtype=self.dtype, device=self.device)
                mask = mask.masked_fill_(later, torch.finfo(self.dtype).min)[None, None]
            states = self.run(ids, positions[None], self.rotary(_PROBE), mask, None)[0]
        if self.shift:
            states = torch.cat([states[:1], states[:-1]])
        keep = torch.arange(self.vocab_size, device=self.device) != self.mask
        expected, found = expected[:, keep].float(), self.logits(states)[:, keep].float()
        error = float((expected - found).abs().max()) / (float(expected.abs().max()) + 1e-6)
        if not error <= max(1e-4, 8 * torch.finfo(self.dtype).eps):
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be decoded here: running its layers one by one differs from its own "
                f"forward by {error:.1e} of the largest logit"
            )


def _layers(backbone: Any, name: str) -> list[nn.Module]:
    """Return the decoder layers; raise UnsupportedModelError for a backbone that is not of Llama's kind."""
    missing = [part for part in ("layers", "norm", "rotary_emb") if not hasattr(backbone, part)]
    if missing:
        raise UnsupportedModelError(
            f"{name} cannot be decoded here: its backbone has no {missing[0]} (supported: Llama and Qwen3 types)"
        )
    return list(backbone.layers)
