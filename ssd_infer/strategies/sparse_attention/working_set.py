"""The selected slots of a row cache, gathered once a round, with room for the drafts of that round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.grouped import selected_attention


class WorkingSet(RowCache):
    """Keys and values a draft step reads: `width` selected slots per layer, row and head, then its own drafts.

    Keys are stored after their rotation, so order and place do not matter. It replaces the shared cache in draft
    steps, whose keys go nowhere else: nothing is rolled back, and every γ steps read one compact block. Memory is
    taken once, for the widest selection to come; a wider one than was announced takes new memory.
    """

    def __init__(self, shared: RowCache, columns: int = 0) -> None:
        """Gather from `shared`; `columns` is the most slots and drafts of a row that are expected."""
        super().__init__(shared.batch, columns, shared.num_layers)
        self._shared = shared
        self._memory: list[tuple[Tensor, Tensor]] = []
        self.width = 0
        self._step = 0
        self._hidden: Tensor | None = None

    def gather(self, slots: Tensor, hidden: Tensor | None, room: int) -> None:
        """Take `slots` `(L|1, B, KV|1, W)` of each layer and leave `room` columns for drafts.

        `hidden` `(B, W)` names columns a row has no slot for.
        """
        self.width, self._step = slots.shape[-1], 0
        self._hidden = None
        rows: Tensor | None = None
        for layer in range(self._shared.num_layers):
            keys, values = self._shared.held(layer)
            if rows is None or slots.shape[0] > 1:
                own = slots[min(layer, slots.shape[0] - 1)]
                rows = flat_index(functional.pad(own, (0, room)), keys)
            own_keys, own_values = self._columns(layer, keys, values, self.width + room)
            self._keys[layer] = take(keys, rows, self.width + room, own_keys)
            self._values[layer] = take(values, rows, self.width + room, own_values)
        if hidden is not None:
            some = self._keys[0]
            assert some is not None
            mask = torch.zeros(
                (hidden.shape[0], 1, 1, self.width + room), dtype=some.dtype, device=some.device
            )
            mask[..., : self.width].masked_fill_(hidden[:, None, None], -torch.inf)
            self._hidden = mask

    def nbytes(self) -> int:
        """Return the bytes held, used or not."""
        return sum(part.numel() * part.element_size() for pair in self._memory for part in pair)

    def _columns(self, layer: int, keys: Tensor, values: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return memory for `width` columns of every row and head of a layer, each `(B·KV·width, D)`."""
        lines = keys.shape[0] * keys.shape[1]
        if layer == len(self._memory):
            size = lines * max(width, self.capacity)
            memory = keys.new_empty((size, keys.shape[-1])), values.new_empty((size, values.shape[-1]))
            self._memory.append(memory)
        own = self._memory[layer]
        if own[0].shape[0] < lines * width:
            size = lines * (width + width // 8)
            own = keys.new_empty((size, keys.shape[-1])), values.new_empty((size, values.shape[-1]))
            self._memory[layer] = own
        return own[0][: lines * width], own[1][: lines * width]

    def at(self, step: int) -> None:
        """Let the next pass write draft column `step`."""
        self._step = self.width + step

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store `(B, KV, 1, D)` keys and values of this step; return everything gathered and drafted so far."""
        own_keys, own_values = self._keys[layer_idx], self._values[layer_idx]
        if own_keys is None or own_values is None:
            raise RuntimeError("WorkingSet.update before WorkingSet.gather")
        own_keys[:, :, self._step] = keys[:, :, 0]
        own_values[:, :, self._step] = values[:, :, 0]
        end = self._step + 1
        return own_keys[:, :, :end], own_values[:, :, :end]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend to all that `update` returned; see `Attend`."""
        hidden = None if self._hidden is None else self._hidden[..., : self._step + 1]
        return selected_attention(query, key, value, scaling, hidden)


def flat_index(slots: Tensor, stored: Tensor, rows: Tensor | None = None) -> Tensor:
    """Turn slots `(R, KV|1, W)` of `rows` (None: all) into indices into `stored` `(B, KV, S, D)` as `(B·KV·S, D)`."""
    batch, heads, capacity, _ = stored.shape
    rows = torch.arange(batch, device=slots.device) if rows is None else rows
    lines = rows[:, None] * heads + torch.arange(heads, device=slots.device)
    return (slots + lines.unsqueeze(-1) * capacity).flatten()


def take(stored: Tensor, flat: Tensor, width: int, out: Tensor | None = None) -> Tensor:
    """Copy what `flat_index` named from `(B, KV, S, D)`, into `out` `(R·KV·width, D)` if given.

    Return it as `(R, KV, width, D)`.
    """
    heads, size = stored.shape[1], stored.shape[3]
    return torch.index_select(stored.view(-1, size), 0, flat, out=out).view(-1, heads, width, size)
