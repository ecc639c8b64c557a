"""Where one forward pass stands: the slots it writes, the positions it has, what it may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Rotary = tuple[Tensor, Tensor] | Tensor
"""Cosines and sines, or one table of complex rotations where a family keeps it so (DeepSeek-V2)."""


class Tables(Protocol):
    """Rotary tables of one decoding."""

    def at(self, window: Window, kind: str | None) -> Rotary:
        """Return the table `(1|B, T, D)` of layers of `kind` at the positions of `window`."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Attention within blocks of `size` positions: a token sees its own block up to itself."""

    size: int


Reach = int | Chunk | None
"""How far back a layer attends: so many positions, its own included; within a chunk; or everywhere (None)."""


class Geometry:
    """Tables shared by all windows of one decoding: rotary embeddings, position ids, masks.

    For rows of equal length the causal mask of any window is a view of one band matrix, so building a mask costs
    nothing: entry (t, j) of the band is open iff j <= t + capacity, and a window at `start` begins at column
    capacity - start.
    """

    def __init__(
        self,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        tables: Tables | None,
        *,
        implicit_causal: bool,
        band: int,
        origin: int = 0,
        masks: bool = False,
    ) -> None:
        """Prepare masks for `capacity` slots; `band` is the widest window that gets its mask as a view.

        `tables`: rotary tables of these slots; None for models without. `implicit_causal`: the attention backend is
        causal by itself when it gets no mask (sdpa is, eager is not). `origin`: the position of slot 0; rows must have
        one length where it is not 0. `masks`: attention wants a mask even where it hides nothing.
        """
        self._implicit_causal = implicit_causal and not masks
        self._masks_always = masks
        self.capacity = capacity
        self.dtype = dtype
        self.device = device
        self.origin = origin
        self.positions = torch.arange(origin, origin + capacity, device=device).unsqueeze(0)
        self._tables = tables
        self._bands: dict[int | None, Tensor] = {}
        self._band_width = band

    def rotary(self, window: Window, kind: str | None = None) -> Rotary:
        """Return the rotary table `(1|B, T, D)` of layers of `kind` at the positions of `window`."""
        if self._tables is None:
            raise ValueError("this model has no rotary embeddings")
        return self._tables.at(window, kind)

    def mask(self, window: Window, reach: Reach) -> Tensor | None:
        """Return an additive mask broadcastable to `(B, 1, T, end)`, or None where plain causal attention is right.

        `reach` is how far back each query sees.
        """
        if isinstance(reach, Chunk):
            return self._chunked(window, reach)
        if reach is not None and window.end <= reach:
            reach = None
        if window.start is not None:
            if reach is None and (self._open(window) or (window.start == 0 and self._implicit_causal)):
                return None
            if window.width <= self._band_width:
                left = self.capacity - window.start
                return self._band(reach)[:, :, : window.width, left : left + window.end]
        slots = self.positions[:, None, : window.end]
        queries = window.position_ids.unsqueeze(-1)
        hidden = slots > queries
        if reach is not None:
            hidden |= slots <= queries - reach
        return self.additive(hidden).unsqueeze(1)

    def _open(self, window: Window) -> bool:
        """Tell whether nothing before the end of `window` is hidden from it, and no mask may say so."""
        return window.width == 1 and not self._masks_always

    def _chunked(self, window: Window, chunk: Chunk) -> Tensor | None:
        """Return the mask of attention within chunks, which are counted from slot 0."""
        if window.end <= chunk.size:
            return self.mask(window, None)
        slots = (self.positions - self.origin)[:, None, : window.end]
        queries = (window.position_ids - self.origin).unsqueeze(-1)
        hidden = (slots > queries) | (slots // chunk.size < queries // chunk.size)
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
        self._rotary: dict[str | None, Rotary] = {}
        self._masks: dict[Reach, Tensor | None] = {}
        self._scatter: tuple[Tensor, Tensor] | None = None

    @property
    def consecutive(self) -> bool:
        """Tell whether every token's position is its slot."""
        return True

    def rotary(self, kind: str | None = None) -> Rotary:
        """Return the rotary table of layers of `kind` at this window, looked up once."""
        found = self._rotary.get(kind)
        if found is None:
            found = self._rotary[kind] = self.geometry.rotary(self, kind)
        return found

    def mask(self, reach: Reach) -> Tensor | None:
        """Return the attention mask for layers that see as far back as `reach`, computed once."""
        if reach not in self._masks:
            self._masks[reach] = self.geometry.mask(self, reach)
        return self._masks[reach]

    def key_positions(self) -> Tensor:
        """Return the positions `(1|B, S)` of the keys that the attention of this pass is given."""
        return self.geometry.positions[:, : self.end]

    def scatter_index(self) -> tuple[Tensor, Tensor]:
        """Return row and slot indices `(B, 1)` and `(B, T)` for writing rows of different lengths."""
        if self._scatter is None:
            rows = torch.arange(self.position_ids.shape[0], device=self.geometry.device).unsqueeze(1)
            self._scatter = (rows, self.position_ids)
        return self._scatter
