"""A slot-addressed key/value cache whose rows have lengths of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ssd_infer.engine.window import Window


class RowCache:
    """Keys and values of every layer in preallocated slots; row b's token at position i lies in slot i.

    Since slots are absolute, rolling back is forgetting: whatever a draft wrote past a row's committed length is
    masked, and overwritten by the next verify pass. Nothing is ever cropped or cloned. Layers allocate on first use,
    with the head count and dtype of the keys they store, so no family needs describing.

    It stands in for `transformers.Cache` inside decoder layers, which call `update` and nothing else.
    """

    is_compileable = False

    def __init__(self, batch: int, capacity: int, num_layers: int) -> None:
        """Reserve `capacity` slots a row for `batch` rows; memory is taken when a layer first writes."""
        self.batch = batch
        self.capacity = capacity
        self.num_layers = num_layers
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers
        self._window: Window | None = None
        self._beside: dict[str, Tensor] = {}
        self.passed: dict[str, tuple[Tensor, Tensor]] = {}
        """Keys and values that layers of the current pass hand on to later ones."""

    def aim(self, window: Window) -> None:
        """Let the following `update` calls write the slots of `window`."""
        if self.passed and window is not self._window:
            self.passed = {}
        self._window = window

    def commit(self, lengths: list[int]) -> None:
        """Promise that no pass begins before slot `lengths[b]` of each row b any more; slots need no such promise."""

    def pretend(self, lengths: list[int]) -> None:
        """Let passes begin at slots whose keys nobody computed, zeros, for measurements."""

    def keep(self, name: str, window: Window, values: Tensor) -> None:
        """Store what a family keeps of each token beside keys and values, `(B, T, …)` at the slots of `window`."""
        held = self._beside.get(name)
        if held is None:
            held = self._beside[name] = values.new_zeros((self.batch, self.capacity, *values.shape[2:]))
        if window.start is not None:
            held[:, window.start : window.end] = values
        else:
            rows, slots = window.scatter_index()
            held[rows, slots] = values

    def kept(self, name: str, window: Window) -> Tensor:
        """Return what `keep` stored at the slots of `window`, `(B, T, …)`."""
        held = self._beside[name]
        if window.start is not None:
            return held[:, window.start : window.end]
        rows, slots = window.scatter_index()
        return held[rows, slots]

    @property
    def window(self) -> Window:
        """The window of the current pass."""
        if self._window is None:
            raise RuntimeError("the cache is aimed at no window yet")
        return self._window

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store `(B, H, T, D)` keys and values at the window; return views `(B, H, end, D)` of all slots up to it."""
        window = self._window
        if window is None:
            raise RuntimeError("RowCache.update before RowCache.aim: no slots to write")
        stored_keys, stored_values = self._keys[layer_idx], self._values[layer_idx]
        if stored_keys is None or stored_values is None:
            stored_keys, stored_values = self.allocate(layer_idx, keys, values)
        if window.start is not None:
            stored_keys[:, :, window.start : window.end] = keys
            stored_values[:, :, window.start : window.end] = values
        else:
            rows, slots = window.scatter_index()
            stored_keys[rows, :, slots] = keys.transpose(1, 2)
            stored_values[rows, :, slots] = values.transpose(1, 2)
        return stored_keys[:, :, : window.end], stored_values[:, :, : window.end]

    def stored(self, layer_idx: int, end: int) -> tuple[Tensor, Tensor] | None:
        """Return views `(B, H, end, D)` of a layer's keys and values before slot `end`; None if it never wrote."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if keys is None or values is None:
            return None
        return keys[:, :, :end], values[:, :, :end]

    def held(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return all slots `(B, H, capacity, D)` of a layer that has written."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if keys is None or values is None:
            raise RuntimeError(f"layer {layer_idx} has stored no keys yet")
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the slots visible to the current window, not counting its own."""
        del layer_idx
        return 0 if self._window is None else self._window.end - self._window.width

    def move(self, rows: list[int], sources: list[int], places: list[int]) -> None:
        """Copy what slots `sources[i]` of `rows[i]` hold to slots `places[i]`, in every layer and beside them.

        All are read before any is written.
        """
        device = next((layer.device for layer in self._keys if layer is not None), torch.device("cpu"))
        at, old, new = (as_rows(indices, device) for indices in (rows, sources, places))
        for layer in (*self._keys, *self._values):
            if layer is not None:
                layer[at, :, new] = layer[at, :, old]
        for held in self._beside.values():
            held[at, new] = held[at, old]

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row not named in `rows` `(B',)`, which ascend; the others move down in place."""
        order = rows.tolist()
        self.batch = len(order)
        for layers in (self._keys, self._values):
            for index, layer in enumerate(layers):
                if layer is not None:
                    layers[index] = _moved_down(layer, order)
        self._beside = {name: _moved_down(held, order) for name, held in self._beside.items()}

    def nbytes(self) -> int:
        """Return the bytes held by all layers, and beside them."""
        tensors = [layer for layer in (*self._keys, *self._values) if layer is not None]
        tensors += self._beside.values()
        return sum(layer.numel() * layer.element_size() for layer in tensors)

    def share(self, other: RowCache) -> None:
        """Use the very slots of `other`, which has the same rows and capacity."""
        self._keys, self._values = list(other._keys), list(other._values)
        self._beside = dict(other._beside)

    def taken(self, length: int) -> dict[str, Any]:
        """Return what the first row keeps of its first `length` tokens, as data that `lay` takes and torch saves.

        `keys` and `values` hold a tensor `(H, length, D)` a layer, None where a layer stores none; `beside` what
        families keep of each token `(length, …)`.
        """
        keys, values = (
            [None if layer is None else layer[0, :, :length].contiguous() for layer in layers]
            for layers in (self._keys, self._values)
        )
        beside = {name: held[0, :length].contiguous() for name, held in self._beside.items()}
        return {"length": length, "keys": keys, "values": values, "beside": beside}

    def lay(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Begin with what other caches of the same layers have `taken` of one row each, in this order."""
        for layer, (keys, values) in enumerate(zip(rows[0]["keys"], rows[0]["values"], strict=True)):
            if keys is None:
                continue
            stored = self.allocate(layer, keys.unsqueeze(0), values.unsqueeze(0))
            for place, row in enumerate(rows):
                for held, own in zip(stored, (row["keys"][layer], row["values"][layer]), strict=True):
                    held[place, :, : row["length"]] = own
        for name, own in rows[0]["beside"].items():
            held = self._beside[name] = own.new_zeros((self.batch, self.capacity, *own.shape[1:]))
            for place, row in enumerate(rows):
                held[place, : row["length"]] = row["beside"][name]

    def allocate(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Reserve slots for one layer of keys and values like `keys` and `values` `(·, H, ·, D)`; return them.

        They are zeros, since masked slots are multiplied by a zero weight.
        """
        stored = keys.new_zeros((self.batch, keys.shape[1], self.capacity, keys.shape[3]))
        other = values.new_zeros((self.batch, values.shape[1], self.capacity, values.shape[3]))
        self._keys[layer_idx], self._values[layer_idx] = stored, other
        return stored, other


def _moved_down(layer: Tensor, order: list[int]) -> Tensor:
    """Return the rows `order` of `layer` `(B, …)`, which ascend, as a view of its first rows."""
    for place, row in enumerate(order):
        if place != row:
            layer[place] = layer[row]
    return layer[: len(order)]


def uniform(lengths: list[int]) -> bool:
    """Tell whether all rows have the same length, which makes every cache write a plain slice."""
    return all(length == lengths[0] for length in lengths)


def as_rows(indices: list[int], device: torch.device) -> Tensor:
    """Return `indices` as an index tensor `(B,)` on `device`."""
    return torch.tensor(indices, dtype=torch.long, device=device)
