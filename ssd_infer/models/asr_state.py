"""Decoder state of a batch: keys and values whose rows have lengths of their own, and which roll back by forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_GROWTH = 64


@dataclass(slots=True)
class SelfCache:
    """One layer's view of the cache for one pass: where to write, what may be read."""

    keys: Tensor
    values: Tensor
    start: int | None
    """First slot when all rows are equally long."""
    end: int
    slots: Tensor | None
    """int64 `(B, n)`: slots of a ragged batch."""
    mask: Tensor | None

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write `(B, H, n, D)` keys and values; return views of all slots in use."""
        for store, new in ((self.keys, keys), (self.values, values)):
            if self.slots is None:
                store[:, :, self.start : self.end] = new
            else:
                store.scatter_(2, self.slots[:, None, :, None].expand_as(new), new)
        return self.keys[:, :, : self.end], self.values[:, :, : self.end]


@dataclass(slots=True)
class Aim:
    """The slots, positions and mask of one pass, shared by all layers."""

    state: CrossState
    start: int | None
    end: int
    slots: Tensor | None
    mask: Tensor | None

    @property
    def positions(self) -> int | Tensor:
        """First position of an even batch, or all positions `(B, n)` of a ragged one."""
        return self.slots if self.slots is not None else int(self.start or 0)

    def layer(self, index: int) -> SelfCache:
        """Return the view of layer `index`."""
        keys, values = self.state.store(index, self.end)
        return SelfCache(keys, values, self.start, self.end, self.slots, self.mask)


class CrossState:
    """Audio keys and values, and a token cache per layer; slot i of a row holds its token i.

    `lengths` are the tokens each row holds. Rolling back only lowers them: what lies beyond is masked and overwritten.
    """

    def __init__(self, audio: list[tuple[Tensor, Tensor]], audio_mask: Tensor | None, rows: int) -> None:
        """Start with no tokens in any of `rows`."""
        self.audio, self.audio_mask = audio, audio_mask
        self.lengths: list[int] = [0] * rows
        self._cache: list[tuple[Tensor, Tensor] | None] = [None] * len(audio)

    def aim(self, width: int, device: torch.device) -> Aim:
        """Return where the next `width` tokens of every row go."""
        first = self.lengths[0]
        if all(length == first for length in self.lengths):
            mask = None if width == 1 else _causal(first, width, device)
            return Aim(self, first, first + width, None, mask)
        starts = torch.tensor(self.lengths, device=device)
        slots = starts[:, None] + torch.arange(width, device=device)
        end = max(self.lengths) + width
        mask = torch.arange(end, device=device) <= slots[:, :, None]
        return Aim(self, None, end, slots, mask[:, None])

    def advance(self, width: int, counts: Sequence[int] | None) -> None:
        """Count the tokens just written: `counts[b]` of row b, or `width` of every row."""
        taken = [width] * len(self.lengths) if counts is None else list(counts)
        if len(taken) != len(self.lengths) or any(not 0 <= count <= width for count in taken):
            raise ValueError(
                f"counts: needs one number from 0 to {width} for each of {len(self.lengths)} rows (got {taken})"
            )
        self.lengths = [length + count for length, count in zip(self.lengths, taken, strict=True)]

    def crop(self, lengths: Sequence[int]) -> None:
        """Keep the first `lengths[b]` tokens of row b; raises ValueError for more than it holds."""
        kept = list(lengths)
        if len(kept) != len(self.lengths) or any(
            not 0 <= new <= old for new, old in zip(kept, self.lengths, strict=False)
        ):
            raise ValueError(f"lengths: must not exceed those held, {self.lengths} (got {kept})")
        self.lengths = kept

    def select(self, rows: Sequence[int]) -> None:
        """Keep the rows `rows`, in that order."""
        order = list(rows)
        index = torch.tensor(order, dtype=torch.long, device=self.audio[0][0].device)
        self.audio = [(keys[index], values[index]) for keys, values in self.audio]
        self.audio_mask = None if self.audio_mask is None else self.audio_mask[index]
        self._cache = [None if pair is None else (pair[0][index], pair[1][index]) for pair in self._cache]
        self.lengths = [self.lengths[row] for row in order]

    def store(self, index: int, end: int) -> tuple[Tensor, Tensor]:
        """Return layer `index`'s keys and values `(B, H, S, D)` with room for `end` slots."""
        pair = self._cache[index]
        if pair is None or pair[0].shape[2] < end:
            grown = self._grown(index, pair, end)
            self._cache[index] = grown
            return grown
        return pair

    def _grown(self, index: int, pair: tuple[Tensor, Tensor] | None, end: int) -> tuple[Tensor, Tensor]:
        """Return a larger copy, zero where nothing was written: masked slots still enter a product with weight zero."""
        like = self.audio[index][0]
        rows, heads, _, width = like.shape
        capacity = max(end, 0 if pair is None else 2 * pair[0].shape[2])
        capacity += -capacity % _GROWTH
        keys, values = (like.new_zeros((rows, heads, capacity, width)) for _ in range(2))
        if pair is not None:
            keys[:, :, : pair[0].shape[2]] = pair[0]
            values[:, :, : pair[1].shape[2]] = pair[1]
        return keys, values


def _causal(first: int, width: int, device: torch.device) -> Tensor:
    """Return bool `(width, first + width)`: query i sees the slots up to `first + i`."""
    ends = first + torch.arange(width, device=device)
    return torch.arange(first + width, device=device) <= ends[:, None]
