"""Where a pass over nodes of a token tree stands: slots by number of the node, positions by its depth."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.tree import Tree
from ssd_infer.engine.window import Chunk, Geometry, Reach, Window


class TreeWindow(Window):
    """Consecutive nodes of every row's tree: node i lies in slot `bases[b] + i`, and sees its ancestors alone.

    Everything a row has committed is before its base; what later nodes, and nodes of other paths, have stored stays
    hidden. Sliding windows and chunks are counted by positions.
    """

    __slots__ = ("_hidden", "_keys", "bases", "first", "tree")

    def __init__(self, geometry: Geometry, bases: list[int], tree: Tree, first: int, width: int) -> None:
        """Open a window of nodes `first` to `first + width - 1`; `bases` are the committed lengths of the rows."""
        if geometry.origin:
            raise ValueError("trees need slots that are their positions")
        super().__init__(geometry, [base + first for base in bases], width)
        self.bases, self.tree, self.first = bases, tree, first
        depths = tree.depths[:, first : first + width]
        self.position_ids = depths + self._base_column()
        self._hidden: Tensor | None = None
        self._keys: Tensor | None = None

    @property
    def consecutive(self) -> bool:
        """Nodes are numbered otherwise than they follow each other."""
        return False

    def mask(self, reach: Reach) -> Tensor:
        """Return an additive mask `(1|B, 1, T, end)` of what each node sees in layers that see back to `reach`."""
        found = self._masks.get(reach)
        if found is None:
            found = self._masks[reach] = self.geometry.additive(self._out_of_sight(reach)).unsqueeze(1)
        return found

    def key_positions(self) -> Tensor:
        """Return the positions `(1|B, end)` of all slots before the end; those of no node count on."""
        if self._keys is None:
            slots = self.geometry.positions[:, : self.end]
            if self.start is not None:
                nodes = self.tree.depths[:, : self.first + self.width] + self.bases[0]
                before = slots[:, : self.bases[0]].expand(len(nodes), -1)
                self._keys = torch.cat([before, nodes], dim=1)
            else:
                rows = slots.expand(len(self.bases), -1)
                nodes = self._node_slots()
                depths = self.tree.depths[:, : self.first + self.width].expand(len(self.bases), -1)
                self._keys = rows.scatter(1, nodes, depths + self._base_column())
        return self._keys

    def scatter_index(self) -> tuple[Tensor, Tensor]:
        """Return row and slot indices `(B, 1)` and `(B, T)`."""
        if self._scatter is None:
            rows = torch.arange(len(self.bases), device=self.geometry.device).unsqueeze(1)
            self._scatter = rows, self._node_slots()[:, self.first :]
        return self._scatter

    def hidden(self) -> Tensor:
        """Return which slots `(1|B, T, end)` hold no ancestor of a node, of those from each row's base on."""
        if self._hidden is None:
            last = self.first + self.width
            closed = ~self.tree.ancestry[:, self.first : last, :last]
            if self.start is not None:
                self._hidden = torch.nn.functional.pad(closed, (self.bases[0], 0))
            else:
                rows = len(self.bases)
                slots = self.geometry.positions[:, None, : self.end]
                beyond = (slots >= self._base_column().unsqueeze(-1)).expand(-1, self.width, -1).clone()
                places = self._node_slots().unsqueeze(1).expand(-1, self.width, -1)
                self._hidden = beyond.scatter_(2, places, closed.expand(rows, -1, -1))
        return self._hidden

    def _out_of_sight(self, reach: Reach) -> Tensor:
        hidden = self.hidden()
        if reach is None:
            return hidden
        keys, queries = self.key_positions().unsqueeze(1), self.position_ids.unsqueeze(-1)
        if isinstance(reach, Chunk):
            return hidden | (keys // reach.size < queries // reach.size)
        return hidden | (keys <= queries - reach)

    def _base_column(self) -> Tensor:
        """Return the bases `(1|B, 1)`: a single one where they are equal."""
        bases = self.bases[:1] if self.start is not None else self.bases
        return torch.tensor(bases, device=self.geometry.device).unsqueeze(1)

    def _node_slots(self) -> Tensor:
        """Return the slots `(B, first + T)` of nodes 0 to the last one of this window."""
        bases = torch.tensor(self.bases, device=self.geometry.device).unsqueeze(1)
        return bases + torch.arange(self.first + self.width, device=self.geometry.device)
