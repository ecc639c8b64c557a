"""An exponential moving average of the weights, which is what a checkpoint then holds.

`model.safetensors` has the averaged weights, the ones to decode with; `ema_training_weights.safetensors` beside it has
those that training goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FILE = "ema_training_weights.safetensors"


class WeightAverage:
    """θ̄ ← d·θ̄ + (1−d)·θ after every step, with d = min(decay, (1+n)/(10+n)) so that the start is forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin at the weights of `model`."""
        self.model, self.decay = model, decay
        self.average = {name: value.detach().clone() for name, value in _trained(model)}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the present weights; `step` counts from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in _trained(self.model):
            self.average[name].lerp_(value.detach(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights while inside."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def save_training_weights(self, directory: Path) -> None:
        """Write the weights that training goes on from."""
        weights = {name: value.detach().contiguous() for name, value in _trained(self.model)}
        save_file(weights, directory / FILE)

    def restore(self, directory: Path) -> None:
        """Take up a checkpoint: the model was given the average when it was loaded."""
        stored = load_file(directory / FILE)
        for name, held in self.average.items():
            held.copy_(stored[name])
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in _trained(self.model):
            held = value.detach().clone()
            value.copy_(self.average[name])
            self.average[name].copy_(held)


def _trained(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in model.named_parameters() if value.requires_grad)
