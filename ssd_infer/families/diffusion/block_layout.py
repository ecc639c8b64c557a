"""Several block states side by side in one row: a tree of blocks, each seeing the prefix, its ancestors and itself.

Bidirectional attention forbids sharing inside a block (siblings would see each other), so every state of the active
block is a segment of its own; finished blocks on the way to it are shared segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from ssd_infer.families.diffusion.state import Block, State

ROOT, PAD = -1, -2
Topology = tuple[int, ...]
"""Parent of each segment: an earlier segment, ROOT for the stored prefix, PAD for filling (sees only itself)."""


@dataclass(slots=True)
class Packing:
    """The segments of one row in one call."""

    parents: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Absolute position of each segment's first token."""
    ends: list[int] = field(default_factory=list)
    """Segment of each state's active block, in the order of the states."""

    @classmethod
    def of(cls, states: Iterable[State]) -> Packing:
        """Pack `states` of one row; finished blocks they have in common become one segment."""
        packing = cls()
        places: dict[tuple[int, Block], int] = {}
        for state in states:
            parent = ROOT
            width = len(state.tokens)
            start = state.start - width * len(state.done)
            for block in state.done:
                parent = packing._place(places, parent, block, start)
                start += width
            packing.ends.append(packing._place(places, parent, state.tokens, start))
        return packing

    def path(self, state: int) -> list[int]:
        """Return the segments of the finished blocks before the active block of `state`, in order."""
        found = []
        parent = self.parents[self.ends[state]]
        while parent >= 0:
            found.append(parent)
            parent = self.parents[parent]
        return found[::-1]

    def _place(self, places: dict[tuple[int, Block], int], parent: int, block: Block, start: int) -> int:
        place = places.get((parent, block))
        if place is None:
            place = places[parent, block] = len(self.blocks)
            self.parents.append(parent)
            self.blocks.append(block)
            self.starts.append(start)
        return place


_CACHED_SEGMENTS = 64
"""Masks of larger packings (a prompt's prefill) are built anew: each is used once."""


def own_mask(topology: Topology, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the additive mask `(N, N)` among the positions of one packing, N = segments × width."""
    make = _own_mask if len(topology) <= _CACHED_SEGMENTS else _own_mask.__wrapped__
    return make(topology, width, dtype, device)


@lru_cache(maxsize=256)
def _own_mask(topology: Topology, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    count = len(topology)
    visible = torch.zeros(count, count, dtype=torch.bool)
    for segment, parent in enumerate(topology):
        if parent >= 0:
            visible[segment] = visible[parent]
        visible[segment, segment] = True
    spread = visible.repeat_interleave(width, 0).repeat_interleave(width, 1)
    mask = torch.zeros(spread.shape, dtype=dtype)
    return mask.masked_fill_(~spread, torch.finfo(dtype).min).to(device)


@lru_cache(maxsize=256)
def _reach(topology: Topology, width: int, room: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `own_mask` behind `room` columns of zeros, to be sliced by the length of the prefix."""
    own = own_mask(topology, width, dtype, device)
    return torch.cat([own.new_zeros(own.shape[0], room), own], dim=1)


def single_mask(
    topology: Topology, width: int, prefix: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Return the mask `(1, 1, N, prefix + N)` of one row whose scratch region follows its prefix; None: see all."""
    if len(topology) == 1:
        return None
    room = -(-max(prefix, 1) // 256) * 256
    make = _reach if len(topology) <= _CACHED_SEGMENTS else _reach.__wrapped__
    return make(topology, width, room, dtype, device)[None, None, :, room - prefix :]


def batch_mask(
    topologies: list[Topology],
    width: int,
    prefixes: list[int],
    base: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """Return the mask `(B, 1, N, base + N)` of rows with prefixes of their own; None where all see all."""
    if all(prefix == base for prefix in prefixes) and all(item == topologies[0] for item in topologies):
        return single_mask(topologies[0], width, base, dtype, device)
    own = torch.stack([own_mask(item, width, dtype, device) for item in topologies])
    mask = torch.cat([own.new_zeros(*own.shape[:2], base), own], dim=2)
    for row, prefix in enumerate(prefixes):
        mask[row, :, prefix:base] = torch.finfo(dtype).min
    return mask[:, None]
