"""Who is shown attention probabilities, and how they are shown: before they are normalised, which costs no pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Probs:
    """Probabilities p = `weights` / `norms` of a block of rows and heads.

    `weights` `(rows, heads, G, T, S)` are exp(score - largest score) in the model's precision, 0 where hidden;
    `norms` `(rows, heads, G, T)` are their sums in float32 or wider.
    """

    weights: Tensor
    norms: Tensor

    @property
    def slots(self) -> int:
        """S, how many slots are shown."""
        return int(self.weights.shape[-1])

    def mean(self) -> Tensor:
        """Return the mean over all queries `(rows, heads, S)`, by one product with the inverse norms."""
        rows, heads, group, width, slots = self.weights.shape
        share = (self.norms * (group * width)).reciprocal_().to(self.weights.dtype)
        folded = self.weights.view(rows * heads, group * width, slots)
        return torch.bmm(share.view(rows * heads, 1, -1), folded).view(rows, heads, slots)

    def at(self, step: int) -> Tensor:
        """Return the probabilities `(rows, heads, G, S)` of query `step` of the window."""
        return self.weights[:, :, :, step] / self.norms[:, :, :, step, None]

    def all(self) -> Tensor:
        """Return all probabilities `(rows, heads, G, T, S)`."""
        return self.weights / self.norms.unsqueeze(-1)


class Listener(Protocol):
    """Who wants to see attention probabilities."""

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        """Take probabilities of slots from `first` on, windows beginning at `starts`; keep no tensor of `probs`.

        Every layer, row and head is shown once a pass; head 0 of a row comes first.
        """
