"""Run a masked-diffusion model on noised copies of a batch, and let it decode its own blocks; no objective in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ssd_infer.families.diffusion.block_mask import noised_beside_clean, positions
from ssd_infer.models.masked_diffusion import MDMForMaskedLM, shift_right
from ssd_train.models.exits import ExitModel


class Canvas:
    """A model together with its layout: whole sequences, or blocks denoised beside the clean text."""

    def __init__(self, model: MDMForMaskedLM) -> None:
        """Find the parts of `model`."""
        self.parts = ExitModel(model)
        self.config = model.config
        self.mask_id = int(model.config.mask_token_id or 0)

    @property
    def head(self) -> Tensor:
        """Return the weight of the head, `(V, d)`."""
        return self.parts.head.weight

    def masked(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Return `tokens` with the mask token where the bool tensor `hidden` says so."""
        return tokens.masked_fill(hidden, self.mask_id)

    def states(
        self, model: nn.Module, copies: Sequence[Tensor], clean: Tensor, attended: Tensor | None
    ) -> list[Tensor]:
        """Return for each noised copy `(B, L)` the hidden states `(B, L, d)` that predict its own positions.

        A block model sees the copies beside `clean` in one pass; any other takes one copy and no clean text.
        `attended` bool `(B, L)` leaves padding out; `model` may be a wrapper around the model itself.
        """
        length = clean.shape[1]
        with self.parts.tapping([]) as taps:
            if self.config.block_causal:
                self._beside_clean(model, copies, clean, attended)
            else:
                (only,) = copies
                mask = None if attended is None else attended.long()
                model(input_ids=only, attention_mask=mask, logits_to_keep=1)
        assert taps.final is not None
        found = taps.final.split(length, dim=1)
        if not self.config.logit_shift:
            return list(found[: len(copies)])
        anchors = shift_right(found[-1]) if self.config.block_causal else None
        return [self._shifted(states, anchors) for states in found[: len(copies)]]

    def _shifted(self, states: Tensor, anchors: Tensor | None) -> Tensor:
        """Return each position's state from the one before; the first of a block takes the clean text's, `anchors`."""
        moved: Tensor = shift_right(states)
        if anchors is None:
            return moved
        return torch.where(self._starts(states.shape[1], states.device)[:, None], anchors, moved)

    def _starts(self, length: int, device: torch.device) -> Tensor:
        """Return bool `(L,)`: the first token of every block but the first, predicted by the end of the one before."""
        place = torch.arange(length, device=device)
        size: int = self.config.block_size
        return (place % size == 0) & (place > 0)

    def causal_states(self, model: nn.Module, clean: Tensor, attended: Tensor | None) -> Tensor:
        """Return the hidden states `(B, L, d)` that predict every position from those before it, as a causal model."""
        length = clean.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=clean.device).tril()[None, None]
        if attended is not None:
            mask = (mask & attended[:, None, None]) | torch.eye(length, dtype=torch.bool, device=clean.device)
        with self.parts.tapping([]) as taps:
            model(input_ids=clean, attention_mask=mask, logits_to_keep=1)
        assert taps.final is not None
        return shift_right(taps.final)

    def _beside_clean(
        self, model: nn.Module, copies: Sequence[Tensor], clean: Tensor, attended: Tensor | None
    ) -> None:
        length, device = clean.shape[1], clean.device
        mask = noised_beside_clean(length, self.config.block_size, len(copies), device)[None, None]
        if attended is not None:
            keys = attended.repeat(1, len(copies) + 1)[:, None, None]
            mask = (mask & keys) | torch.eye(mask.shape[-1], dtype=torch.bool, device=device)
        model(
            input_ids=torch.cat([*copies, clean], 1),
            attention_mask=mask,
            position_ids=positions(length, len(copies), device),
            logits_to_keep=1,
        )

    @torch.no_grad()
    def own_blocks(
        self, model: nn.Module, clean: Tensor, given: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode every block of `clean` `(B, L)` greedily, left to right, from the clean blocks before it.

        Return the blocks `(B, L)`, the most likely tokens `(S, B·K, S)` of every place in all states of K blocks of S
        tokens, and −log p `(B, L)` of `clean` itself. With `given` `(B, L)` those tokens are revealed instead.
        """
        size = self.config.block_size
        rows, length = clean.shape
        cache, anchors = self._clean_cache(model, clean)
        starts = self._starts(length, clean.device)
        mask = self._noised_over_cache(length, clean.device)
        place = torch.arange(length, device=clean.device) % size
        own = clean.new_full(clean.shape, self.mask_id) if given is None else given.clone()
        predictions, nll = [], torch.zeros(rows, length, device=clean.device)
        for step in range(size):
            logits = self._logits(model, self.masked(own, place >= step), mask, cache)
            if self.config.logit_shift:
                logits[:, starts] = anchors[:, starts]
            best = logits.argmax(-1)
            here = place == step
            if given is None:
                own[:, here] = best[:, here]
            nll[:, here] = -logits[:, here].log_softmax(-1).gather(-1, clean[:, here, None])[..., 0]
            predictions.append(best.view(-1, size))
        return own, torch.stack(predictions), nll

    def _logits(self, model: nn.Module, noised: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the logits `(B, L, V)` of a noised copy over the cache of the clean text, which stays as it was."""
        where = positions(noised.shape[1], 0, noised.device)
        out = model(input_ids=noised, attention_mask=mask, position_ids=where, cache=cache)
        cache.crop(-noised.shape[1])
        logits: Tensor = out.logits.float()
        return logits

    def _clean_cache(self, model: nn.Module, clean: Tensor) -> tuple[Any, Tensor]:
        """Return the cache of the clean text and its logits, which under a shift predict each block's first token."""
        cache: Any = DynamicCache(config=self.config.backbone_config)
        logits: Tensor = model(input_ids=clean, cache=cache).logits.float()
        return cache, logits

    def _noised_over_cache(self, length: int, device: torch.device) -> Tensor:
        """Return the mask `(1, 1, L, 2L)` of a noised copy whose clean text lies before it in the cache."""
        rows = noised_beside_clean(length, self.config.block_size, 1, device)[:length]
        return torch.cat([rows[:, length:], rows[:, :length]], 1)[None, None]
