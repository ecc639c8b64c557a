"""Keys of finished blocks kept exactly, and the drafted states of the active block in one call on top of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ssd_infer.families.diffusion.block_cache import BlockCache, BranchView
from ssd_infer.families.diffusion.block_layout import PAD, Packing, batch_mask
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.memory import Lists, Memory, Pass
from ssd_infer.families.diffusion.state import Canvas, State


class ExactMemory(Memory):
    """Keys of finished blocks of a block-causal model: exact, since no later block was ever seen by them."""

    kind: ClassVar[str] = "exact"

    def __init__(self, denoiser: Denoiser, canvases: Sequence[Canvas], layout: str = "tree") -> None:
        """Choose how states share a call: `tree` packs them into one row, `batch` gives each a row of its own."""
        super().__init__(denoiser, canvases)
        self.layout = layout
        self.width = canvases[0].width
        longest = max(canvas.end for canvas in canvases) + (self.width + 2) * self.width
        self.cache = BlockCache(len(canvases), len(denoiser.layers), longest)
        self._anchors: Tensor | None = None
        self._packings: list[Packing] = []
        self._places: list[int] = []
        """First packing of each row; the tree layout has one a row."""
        self._view: BranchView | None = None
        self._last: tuple[Tensor, int] | None = None

    def evaluate(self, lists: Lists) -> Pass:
        """Run all states on top of the stored prefixes."""
        if self.layout == "batch":
            packings = [Packing.of([state]) for states in lists for state in states]
            owners = [row for row, states in enumerate(lists) for _ in states]
        else:
            packings = [Packing.of(states) for states in lists]
            owners = list(range(len(lists)))
        self._packings = packings
        self._places = [owners.index(row) for row in range(len(lists))]
        return self._pass(lists, owners, self._run(packings, owners))

    def keep(self, row: int, state: int, accepted: State) -> State:
        """Store the keys of the blocks `accepted` has finished."""
        if not accepted.done:
            return accepted
        place = self._places[row]
        if self.layout == "batch":
            place, state = place + state, 0
        path = self._packings[place].path(state)
        if self._view is None:
            for segment in path:
                self.cache.keep(row, segment * self.width, self.width)
        else:
            count = len(path) * self.width
            keys = [layer[place, :, :count] for layer in self._view.keys]
            self.cache.put(row, keys, [layer[place, :, :count] for layer in self._view.values])
        self._anchor(row, place, path[-1])
        return accepted._replace(done=())

    def finish_round(self) -> None:
        """Let the next call begin after the longest prefix."""
        self.cache.finish_round()

    def keep_rows(self, rows: list[int]) -> None:
        """Drop rows that ended."""
        super().keep_rows(rows)
        self.cache.keep_rows(rows)
        if self._anchors is not None:
            self._anchors = self._anchors[rows]

    def nbytes(self) -> int:
        """Return the bytes of the cache."""
        return self.cache.nbytes()

    def _run(self, packings: list[Packing], owners: list[int]) -> Tensor:
        """Return hidden states `(R, N, d)` of packings filled up to the longest."""
        denoiser, width = self.denoiser, self.width
        device, dtype = denoiser.device, denoiser.dtype
        longest = max(len(packing.blocks) for packing in packings)
        filling = (denoiser.mask,) * width
        ids, starts, topologies = [], [], []
        for packing in packings:
            missing = longest - len(packing.blocks)
            blocks = packing.blocks + [filling] * missing
            ids.append([token for block in blocks for token in block])
            starts.append(packing.starts + [0] * missing)
            topologies.append((*packing.parents, *[PAD] * missing))
        positions = torch.tensor(starts, device=device)[:, :, None] + torch.arange(width, device=device)
        prefixes = [self.cache.prefix[owner] for owner in owners]
        mask = batch_mask(topologies, width, prefixes, self.cache.base, dtype, device)
        owner_index = torch.tensor(owners, device=device)
        self._view = BranchView(self.cache, owner_index) if self.layout == "batch" else None
        return denoiser.run(
            torch.tensor(ids, device=device),
            positions.flatten(1),
            self.tables,
            mask,
            self.cache if self._view is None else self._view,
        )

    def _pass(self, lists: Lists, owners: list[int], hidden: Tensor) -> Pass:
        width, length = self.width, hidden.shape[1]
        flat = hidden.flatten(0, 1)
        shift = int(self.denoiser.shift)
        anchor = len(flat)
        self._last = (flat, length)
        if shift and self._anchors is not None:
            flat = torch.cat([flat, self._anchors])
        first: list[list[int]] = [[] for _ in lists]
        rest: list[list[int]] = [[] for _ in lists]
        for place, (packing, owner) in enumerate(zip(self._packings, owners, strict=True)):
            for end in packing.ends:
                here = place * length + end * width
                parent = packing.parents[end]
                before = place * length + (parent + 1) * width - 1 if parent >= 0 else anchor + owner
                at_start = packing.starts[end] == 0
                first[owner].append(before if shift and not at_start else here)
                rest[owner].append(here - shift)
        return Pass(flat, first, rest, rows=sum(map(len, lists)))

    def _anchor(self, row: int, place: int, segment: int) -> None:
        """Remember the last state of a row's prefix, which predicts the next block's first token under a shift."""
        if not self.denoiser.shift or self._last is None:
            return
        flat, length = self._last
        if self._anchors is None:
            self._anchors = flat.new_zeros(len(self.canvases), flat.shape[1])
        self._anchors[row] = flat[place * length + (segment + 1) * self.width - 1]
