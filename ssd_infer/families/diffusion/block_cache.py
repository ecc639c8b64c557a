"""Keys and values of finished blocks, and room after them for the blocks of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class BlockCache:
    """Stored prefixes of every row, and a scratch region behind the longest one that each call writes anew.

    Rejected drafts are never taken back: the next call overwrites them. A finished block is kept by one copy of its
    keys of all layers to the end of its row's prefix. Stands in for `transformers.Cache` inside decoder layers.
    """

    is_compileable = False

    def __init__(self, batch: int, num_layers: int, capacity: int) -> None:
        """Serve `batch` rows of `num_layers` layers; memory of `capacity` slots a row is taken at the first write."""
        self.prefix = [0] * batch
        """Stored positions of each row; position p of a row lies in slot p."""
        self.base = 0
        """First slot of the scratch region: the longest prefix."""
        self._layers, self._capacity = num_layers, capacity
        self._store: Tensor | None = None

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write `(B, H, N, D)` into the scratch region; return views `(B, H, base + N, D)` up to its end."""
        end = self.base + keys.shape[2]
        store = self._room(keys, end)
        layer_keys, layer_values = store[layer_idx, 0], store[layer_idx, 1]
        layer_keys[:, :, self.base : end] = keys
        layer_values[:, :, self.base : end] = values
        return layer_keys[:, :, :end], layer_values[:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the slots before the scratch region."""
        del layer_idx
        return self.base

    def keep(self, row: int, start: int, width: int) -> None:
        """Append `width` scratch positions of `row`, from scratch offset `start` on, to its prefix."""
        store = self._stored()
        source, target = self.base + start, self.prefix[row]
        if source != target:
            moved = store[:, :, row, :, source : source + width].clone()
            store[:, :, row, :, target : target + width] = moved
        self.prefix[row] = target + width

    def put(self, row: int, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Append keys and values `(H, n, D)` of every layer to the prefix of `row`."""
        width = keys[0].shape[1]
        store = self._room(keys[0][None], self.prefix[row] + width)
        target = slice(self.prefix[row], self.prefix[row] + width)
        store[:, 0, row, :, target] = torch.stack(list(keys))
        store[:, 1, row, :, target] = torch.stack(list(values))
        self.prefix[row] += width

    def finish_round(self) -> None:
        """Let the scratch region begin after the longest prefix, once all rows kept what they keep."""
        self.base = max(self.prefix, default=0)

    def view(self, layer_idx: int, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return copies `(len(rows), H, base, D)` of the prefixes of `rows`; None while nothing is stored."""
        if self._store is None or not self.base:
            return None
        stored = self._store[layer_idx, :, :, :, : self.base]
        return stored[0].index_select(0, rows), stored[1].index_select(0, rows)

    def keep_rows(self, rows: list[int]) -> None:
        """Drop every row not named in `rows`, which ascend."""
        self.prefix = [self.prefix[row] for row in rows]
        self.finish_round()
        if self._store is not None:
            self._store = self._store[:, :, rows]

    def nbytes(self) -> int:
        """Return the bytes held."""
        return 0 if self._store is None else self._store.numel() * self._store.element_size()

    def _stored(self) -> Tensor:
        if self._store is None:
            raise RuntimeError("nothing has been written to this cache yet")
        return self._store

    def _room(self, like: Tensor, end: int) -> Tensor:
        """Return the store, with at least `end` slots; zeros, since masked slots are multiplied by a zero weight."""
        if self._store is not None and end <= self._store.shape[4]:
            return self._store
        self._capacity = max(self._capacity, end)
        shape = (self._layers, 2, len(self.prefix), like.shape[1], self._capacity, like.shape[3])
        grown = like.new_zeros(shape)
        if self._store is not None:
            grown[:, :, :, :, : self._store.shape[4]] = self._store
        self._store = grown
        return grown


class BranchView:
    """Every drafted state a row of its own: the prefix of its owner is copied in front of the row's new keys."""

    is_compileable = False

    def __init__(self, cache: BlockCache, owners: Tensor) -> None:
        """Serve one row for each entry of `owners` `(R,)`: rows of `cache`."""
        self._cache, self._owners = cache, owners
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Remember the new `(R, H, N, D)` of this layer; return them behind copies of the stored prefixes."""
        self.keys.append(keys)
        self.values.append(values)
        stored = self._cache.view(layer_idx, self._owners)
        if stored is None:
            return keys, values
        return torch.cat([stored[0], keys], dim=2), torch.cat([stored[1], values], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the positions in front of the new ones."""
        del layer_idx
        return self._cache.base
