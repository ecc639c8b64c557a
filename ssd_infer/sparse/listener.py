"""Who is shown attention probabilities."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Listener(Protocol):
    """Who wants to see attention probabilities."""

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Tensor, starts: list[int], first: int = 0
    ) -> None:
        """Take float32 probabilities `(rows, heads, G, T, S)` of slots from `first` on, windows beginning at `starts`.

        Every layer, row and head is shown once a pass; head 0 of a row comes first.
        """
