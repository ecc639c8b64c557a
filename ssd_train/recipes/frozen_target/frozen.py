"""The target of a run: loaded, frozen, and run once a batch without a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.target import Target
from ssd_infer.models.draft_modules.bodies import own_layers
from ssd_infer.models.draft_modules.hearing import Heard, listening
from ssd_train.config.schema import HFModelConfig
from ssd_train.losses.draft_teacher import Head
from ssd_train.losses.products import use_fast_products
from ssd_train.models import build as models
from ssd_train.recipes.base import Batch


class Frozen:
    """A model nobody trains: its parameters want no gradient and stay in evaluation mode.

    It is no submodule of what is trained, so that engines neither shard, cast nor save it: every process has it whole.
    """

    def __init__(self, model: nn.Module) -> None:
        """Freeze `model`; raises UnsupportedModelError where it cannot be taken apart by layers."""
        self.model = model.requires_grad_(requires_grad=False).eval()
        self.target = Target.of(model)

    @staticmethod
    def load(source: HFModelConfig, dtype: str) -> Frozen:
        """Return the model of `source` in `dtype`; raises SSDError where it cannot be loaded or taken apart."""
        found = Frozen(models.pretrained(source, dtype))
        for layer in own_layers(found.model):  # not the head, of which rows are taken
            use_fast_products(layer)
        return found

    def to(self, device: torch.device) -> None:
        """Be on `device`."""
        if self.target.device != device:
            self.target = Target.of(self.model.to(device))

    @property
    def head(self) -> Head:
        """Return the head, whose weights are the model's own."""
        head: Any = self.target.head
        return Head(head.weight, head.bias, self.target._leave)

    @property
    def bytes(self) -> int:
        """Return the bytes of the weights, tied ones once, and of the buffers."""
        return sum(
            one.numel() * one.element_size() for one in (*self.model.parameters(), *self.model.buffers())
        )

    @torch.no_grad()
    def hear(self, batch: Batch, depths: Sequence[int]) -> Heard:
        """Run the model once on `batch`; return its states after each of `depths` layers, un-normed, and arguments."""
        passed = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        self.model.eval()
        with listening(self.model, depths) as heard:
            self.model(**passed, use_cache=False, logits_to_keep=1)
        return heard

    def positional(self, given: dict[str, Any], source: int, length: int) -> dict[str, Any]:
        """Return what layer `source` was `given`, for a module that computes in float32.

        Tables that were rounded for the frozen forward are made anew.
        """
        found = {name: _wide(value) for name, value in given.items()}
        if "position_embeddings" in found:
            found["position_embeddings"] = self._tables(source, length, found.get("position_ids"))
        return found

    def _tables(self, source: int, length: int, position_ids: Tensor | None) -> Any:
        rotary, kind = self.target.rotary, self.target.kinds[source]
        assert rotary is not None
        device = self.target.device
        if position_ids is None:
            position_ids = torch.arange(length, device=device)[None]
        more = {} if kind is None else {"layer_type": kind}
        return rotary(torch.empty(0, device=device), position_ids=position_ids, **more)


def _wide(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_wide(part) for part in value)
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
