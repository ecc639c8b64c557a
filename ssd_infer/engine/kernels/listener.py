"""Who is shown attention probabilities, and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Probs:
    """Probabilities `weights` `(rows, heads, G, T, S)` of a block of rows and heads, 0 where hidden."""

    weights: Tensor

    @property
    def slots(self) -> int:
        """S, how many slots are shown."""
        return int(self.weights.shape[-1])

    def mean(self) -> Tensor:
        """Return the mean over all queries `(rows, heads, S)`."""
        return self.weights.flatten(2, 3).mean(dim=2)

    def at(self, step: int) -> Tensor:
        """Return the probabilities `(rows, heads, G, S)` of query `step` of the window."""
        return self.weights[:, :, :, step]


class Listener(Protocol):
    """Who wants to see attention probabilities."""

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        """Take probabilities of slots from `first` on, windows beginning at `starts`; keep no tensor of `probs`.

        Every layer, row and head is shown once a pass; head 0 of a row comes first.
        """
