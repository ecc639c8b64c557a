"""Where one forward pass stands: the slots it writes, the positions it has, what it may see."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Rotary = tuple[Tensor, Tensor] | Tensor
"""Cosines and sines, or one table of complex rotations where a family keeps it so (DeepSeek-V2)."""


class Geometry:
    """Tables shared by all windows of one decoding: rotary embeddings, position ids, causal masks.

    For rows of equal length the causal mask of any window is a view of one band matrix, so building a mask costs
    nothing: entry (t, j) of the band is open iff j <= t + capacity, and a window at `start` begins at column
    capacity - start.
    """

    def __init__(
        self,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        rotary: Callable[[Tensor], Rotary],
        *,
        implicit_causal: bool,
        band: int,
        origin: int = 0,
    ) -> None:
        """Prepare tables for `capacity` slots; `band` is the widest window that gets its mask as a view.

        `implicit_causal`: the attention backend is causal by itself when it gets no mask (sdpa is, eager is not).
        `origin`: the position of slot 0; rows must have one length where it is not 0.
        """
        self._implicit_causal = implicit_causal
        self.capacity = capacity
        self.dtype = dtype
        self.device = device
        self.origin = origin
        self.positions = torch.arange(origin, origin + capacity, device=device).unsqueeze(0)
        self._table = rotary(self.positions)
        self._bands: dict[int | None, Tensor] = {}
        self._band_width = band

    def rotary(self, window: Window) -> Rotary:
        """Return the rotary table `(1|B, T, D)` at the positions of `window`."""
        table = self._table
        if isinstance(table, Tensor):
            return _at(table, window)
        return _at(table[0], window), _at(table[1], window)

    def mask(self, window: Window, sliding: int | None) -> Tensor | None:
        """Return an additive mask broadcastable to `(B, 1, T, end)`, or None where plain causal attention is right.

        `sliding` limits each query to its last `sliding` slots, its own included.
        """
        if sliding is not None and window.end <= sliding:
            sliding = None
        if window.start is not None:
            if sliding is None and (window.width == 1 or (window.start == 0 and self._implicit_causal)):
                return None
            if window.width <= self._band_width:
                left = self.capacity - window.start
                return self._band(sliding)[:, :, : window.width, left : left + window.end]
        slots = self.positions[:, None, : window.end]
        queries = window.position_ids.unsqueeze(-1)
        hidden = slots > queries
        if sliding is not None:
            hidden |= slots <= queries - sliding
        return self.additive(hidden).unsqueeze(1)

    def _band(self, sliding: int | None) -> Tensor:
        """Return the band matrix `(1, 1, band, capacity + band)` for one sliding width, made once."""
        band = self._bands.get(sliding)
        if band is None:
            columns = torch.arange(self.capacity + self._band_width, device=self.device)
            reach = torch.arange(self._band_width, device=self.device).unsqueeze(1) + self.capacity
            hidden = columns > reach
            if sliding is not None:
                hidden |= columns <= reach - sliding
            band = self._bands[sliding] = self.additive(hidden)[None, None]
        return band

    def additive(self, hidden: Tensor) -> Tensor:
        """Turn a boolean map of hidden slots into an additive mask."""
        blocked = torch.finfo(self.dtype).min
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, blocked)


def _at(table: Tensor, window: Window) -> Tensor:
    """Return the entries `(1|B, T, D)` of `table` `(1, capacity, D)` at the positions of `window`."""
    if window.start is not None:
        return table[:, window.start : window.end]
    return table[0, window.position_ids]


class Window:
    """T consecutive positions of every row, starting at that row's own length.

    `starts` holds each row's first slot; `start` is set when it is the same for all (always at batch 1).
    """

    __slots__ = (
        "_masks",
        "_rotary",
        "_scatter",
        "end",
        "geometry",
        "position_ids",
        "start",
        "starts",
        "width",
    )

    def __init__(self, geometry: Geometry, starts: list[int], width: int) -> None:
        """Open a window of `width` positions at slot `starts[b]` of each row b."""
        self.geometry = geometry
        self.width = width
        self.starts = starts
        self.end = max(starts) + width
        if self.end > geometry.capacity:
            raise ValueError(f"window ends at slot {self.end}, but the cache holds {geometry.capacity}")
        self.start: int | None = starts[0] if min(starts) == max(starts) else None
        if self.start is not None:
            self.position_ids = geometry.positions[:, self.start : self.end]
        elif geometry.origin:
            raise ValueError("rows of different lengths need slots that are their positions")
        else:
            offsets = torch.tensor(starts, device=geometry.device).unsqueeze(1)
            self.position_ids = offsets + geometry.positions[:, :width]
        self._rotary: Rotary | None = None
        self._masks: dict[int | None, Tensor | None] = {}
        self._scatter: tuple[Tensor, Tensor] | None = None

    @property
    def rotary(self) -> Rotary:
        """Rotary cosines and sines of this window, computed once."""
        if self._rotary is None:
            self._rotary = self.geometry.rotary(self)
        return self._rotary

    def mask(self, sliding: int | None) -> Tensor | None:
        """Return the attention mask for layers with this `sliding` width, computed once."""
        if sliding not in self._masks:
            self._masks[sliding] = self.geometry.mask(self, sliding)
        return self._masks[sliding]

    def scatter_index(self) -> tuple[Tensor, Tensor]:
        """Return row and slot indices `(B, 1)` and `(B, T)` for writing rows of different lengths."""
        if self._scatter is None:
            rows = torch.arange(self.position_ids.shape[0], device=self.geometry.device).unsqueeze(1)
            self._scatter = (rows, self.position_ids)
        return self._scatter
