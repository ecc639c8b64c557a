"""Read-only passes over committed text: a candidate draft is scored without touching a single committed key.

Keys of a scratch pass are [committed slots, the pass's own new keys]; nothing is stored. In mode `diagonal` position t
sees the full model's keys before t and its own draft key only: what the first draft of a round sees, for all positions
at once. In mode `causal` the whole window is drafted: t sees committed slots before the window, then draft keys.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Chunk, Geometry, Reach, Window

Own = Literal["diagonal", "causal"]


def unsupported_reason(target: Target) -> str | None:
    """Return why committed text of `target` cannot be passed over again, or None: keys it has, states it has not."""
    if not target.recurrent:
        return None
    return "candidates are scored on committed text, whose recurrent states are not kept (only those at its end are)"


class ScratchWindow(Window):
    """T consecutive positions of every row, all of them committed already."""

    __slots__ = ("_limits", "own", "reach")

    def __init__(self, geometry: Geometry, starts: list[int], width: int, own: Own) -> None:
        """Open a window of `width` positions at slot `starts[b]` of each row b."""
        super().__init__(geometry, starts, width)
        self.own = own
        if own == "diagonal":
            self._limits = self.position_ids
            self.reach = max(starts) + width - 1
        else:
            self._limits = self.position_ids[:, :1].expand(-1, width)
            self.reach = max(starts)

    def mask(self, reach: Reach) -> Tensor | None:
        """Return an additive mask `(1|B, 1, T, reach + T)` over committed slots, then the pass's own keys."""
        if reach not in self._masks:
            committed = self.geometry.positions[:, None, : self.reach]
            hidden = committed >= self._limits.unsqueeze(-1)
            steps = torch.arange(self.width, device=hidden.device)
            ahead = steps[None, :] - steps[:, None]
            closed = (ahead != 0 if self.own == "diagonal" else ahead > 0)[None]
            queries = self.position_ids.unsqueeze(-1)
            if isinstance(reach, Chunk):
                hidden |= committed // reach.size < queries // reach.size
                closed = closed | (queries.transpose(1, 2) // reach.size < queries // reach.size)
            elif reach is not None:
                hidden |= committed <= queries - reach
                closed = closed | (ahead <= -reach)
            own = closed.expand(hidden.shape[0], -1, -1)
            self._masks[reach] = self.geometry.additive(torch.cat([hidden, own], dim=-1)).unsqueeze(1)
        return self._masks[reach]

    def key_positions(self) -> Tensor:
        """Return the positions `(1|B, reach + T)` of committed slots, then of the pass's own tokens."""
        committed = self.geometry.positions[:, : self.reach].expand(self.position_ids.shape[0], -1)
        return torch.cat([committed, self.position_ids], dim=1)


class ScratchCache(RowCache):
    """Show a layer the committed slots of another cache and its own new keys; store nothing."""

    def __init__(self, committed: RowCache, branches: int = 1) -> None:
        """Read `committed`; each of its rows serves `branches` consecutive rows of the pass."""
        super().__init__(committed.batch * branches, committed.capacity, 0)
        self._committed = committed
        self._branches = branches

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Return committed slots and the new `(B, H, T, D)` keys and values, joined."""
        window = self._window
        if not isinstance(window, ScratchWindow):
            raise TypeError("ScratchCache takes a ScratchWindow")
        stored = self._committed.stored(layer_idx, window.reach)
        if stored is None:
            return keys, values
        if self._branches > 1:
            stored = (
                stored[0].repeat_interleave(self._branches, dim=0),
                stored[1].repeat_interleave(self._branches, dim=0),
            )
        return torch.cat([stored[0], keys], dim=2), torch.cat([stored[1], values], dim=2)

    def keep(self, name: str, window: Window, values: Tensor) -> None:
        """Hold the `(B, T, …)` values of this pass, of which nothing is stored."""
        del window
        self._beside[name] = values

    def kept(self, name: str, window: Window) -> Tensor:
        """Return the values of this pass."""
        del window
        return self._beside[name]
