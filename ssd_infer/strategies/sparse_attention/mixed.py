"""A mixed pass: some rows draft one token on selected slots while others verify their window with full attention.

The tokens of all rows are packed into one sequence `(1, N)`, so projections and MLPs run once over everything; only
attention tells the rows apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.grouped import selected_attention, window_attention
from ssd_infer.engine.kernels.listener import Listener
from ssd_infer.engine.window import Geometry, Window
from ssd_infer.strategies.sparse_attention.working_set import flat_index, take


@dataclass(slots=True)
class Segment:
    """The tokens of one row in a mixed pass: one drafted token (`sparse`), or a window of full attention."""

    row: int
    start: int
    ids: list[int]
    ahead: int = 0
    """How many drafts of this round precede it."""
    sparse: bool = False
    verifies: bool = False
    """Whether this window is verified, and its probabilities heard by the selector."""
    first: int = 0
    """Index of its first token in the packed sequence."""

    @property
    def packed(self) -> slice:
        """Where its tokens lie in the packed sequence."""
        return slice(self.first, self.first + len(self.ids))

    @property
    def slots(self) -> slice:
        """Which slots of its row it has."""
        return slice(self.start, self.start + len(self.ids))


class MixedWindow(Window):
    """The packed tokens of several rows, each at its own positions."""

    __slots__ = ("segments",)

    def __init__(self, geometry: Geometry, segments: Sequence[Segment]) -> None:
        """Pack `segments` in order."""
        super().__init__(geometry, [0], 1)
        at = 0
        positions: list[int] = []
        for segment in segments:
            segment.first = at
            at += len(segment.ids)
            positions += range(segment.slots.start, segment.slots.stop)
        self.segments = segments
        self.width, self.end, self.start = at, max(positions) + 1, None
        self.position_ids = torch.tensor([positions], device=geometry.device)


class MixedSet:
    """Selected slots of every row, each row's gathered anew after its own verify, with room for its drafts."""

    def __init__(self, rows: int, room: int, columns: int = 0) -> None:
        """Keep `room` columns for drafts behind the widest selection, expected to be of `columns` slots at most."""
        self.widths = [0] * rows
        self._room = room
        self._columns = columns
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def gather(self, cache: RowCache, rows: list[int], slots: Tensor, hidden: Tensor | None) -> None:
        """Copy `slots` `(L|1, R, KV|1, W)` of `rows`; `hidden` `(R, W)` marks columns at the end to leave out."""
        width = slots.shape[-1]
        unused = [0] * len(rows) if hidden is None else hidden.sum(dim=1).tolist()
        for row, missing in zip(rows, unused, strict=True):
            self.widths[row] = width - missing
        index = torch.tensor(rows, device=slots.device)
        for layer in range(cache.num_layers):
            for stored, kept in zip(cache.held(layer), (self.keys, self.values), strict=True):
                if len(kept) <= layer:
                    kept.append(stored.new_zeros((len(self.widths), stored.shape[1], 0, stored.shape[3])))
                if kept[layer].shape[2] < width + self._room:
                    kept[layer] = _wider(kept[layer], max(width + width // 8, self._columns) + self._room)
                flat = flat_index(slots[min(layer, slots.shape[0] - 1)], stored, index)
                kept[layer][index, :, :width] = take(stored, flat, width)

    def nbytes(self) -> int:
        """Return the bytes held, used or not."""
        return sum(part.numel() * part.element_size() for part in (*self.keys, *self.values))

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self.widths = [self.widths[row] for row in kept]
        self.keys = [layer[kept] for layer in self.keys]
        self.values = [layer[kept] for layer in self.values]


def _wider(kept: Tensor, columns: int) -> Tensor:
    """Return `kept` `(B, KV, C, D)` with room for `columns`."""
    grown = kept.new_zeros((*kept.shape[:2], columns, kept.shape[3]))
    grown[:, :, : kept.shape[2]] = kept
    return grown


class MixedCache(RowCache):
    """Write the packed keys of a mixed pass where each row's belong, and attend row by row."""

    def __init__(self, shared: RowCache, chosen: MixedSet, listener: Listener | None) -> None:
        """Serve rows of `shared`; `chosen` holds what they read while they draft."""
        super().__init__(1, shared.capacity, shared.num_layers)
        self._shared = shared
        self._chosen = chosen
        self._listener = listener

    def aim(self, window: Window) -> None:
        """Prepare the indices of one pass."""
        super().aim(window)
        assert isinstance(window, MixedWindow)
        self._full = [segment for segment in window.segments if not segment.sparse]
        self._drafts = [segment for segment in window.segments if segment.sparse]
        device = window.position_ids.device
        places = [
            (s.row, slot, s.first + i)
            for s in self._full
            for i, slot in enumerate(range(*s.slots.indices(window.end)))
        ]
        self._place = torch.tensor(places, dtype=torch.long, device=device).reshape(-1, 3).T
        columns = [(s.row, self._column(s), s.first) for s in self._drafts]
        self._draft = torch.tensor(columns, dtype=torch.long, device=device).reshape(-1, 3).T
        self._end = 1 + max((column for _, column, _ in columns), default=-1)
        last = torch.zeros(self._shared.batch, dtype=torch.long, device=device)
        last[self._draft[0]] = self._draft[1]
        self._hidden = torch.arange(self._end, device=device) > last[:, None]

    def _column(self, segment: Segment) -> int:
        return self._chosen.widths[segment.row] + segment.ahead

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store packed `(1, KV, N, D)` keys and values; return them unchanged, since `attend` looks up the rest."""
        rows, slots, packed = self._place
        drafting, columns, first = self._draft
        for stored, kept, new in zip(
            self._shared.held(layer_idx),
            (self._chosen.keys, self._chosen.values),
            (keys, values),
            strict=True,
        ):
            tokens = new[0].transpose(0, 1)
            stored[rows, :, slots] = tokens[packed]
            if self._drafts:
                kept[layer_idx][drafting, :, columns] = tokens[first]
        return keys, values

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend from packed queries `(1, H, N, D)`, each to its own row; return `(1, N, H, D)`."""
        out = query.new_empty((1, query.shape[2], query.shape[1], value.shape[-1]))
        stored_keys, stored_values = self._shared.held(layer)
        for segment in self._full:
            row, at = slice(segment.row, segment.row + 1), segment.packed
            window = Window(self.window.geometry, [segment.start], len(segment.ids))
            keys, values = stored_keys[row], stored_values[row]
            heard = self._listener if segment.verifies else None
            out[:, at] = window_attention(
                layer, query[:, :, at], keys, values, scaling, window, heard, segment.row
            )
        if self._drafts:
            rows, _, first = self._draft
            queries = query.new_zeros((self._shared.batch, *query.shape[1:2], 1, query.shape[3]))
            queries[rows, :, 0] = query[0, :, first].transpose(0, 1)
            mask = query.new_zeros(self._hidden.shape).masked_fill_(self._hidden, -torch.inf)
            keys = self._chosen.keys[layer][:, :, : self._end]
            values = self._chosen.values[layer][:, :, : self._end]
            found = selected_attention(queries, keys, values, scaling, mask[:, None, None])
            out[0, first] = found[rows, 0]
        return out
