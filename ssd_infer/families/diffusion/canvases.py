"""Whole canvases: run anew in every call, or their keys kept from the beginning of each block (approximate)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssd_infer.families.diffusion.block_cache import BlockCache, BranchView
from ssd_infer.families.diffusion.block_layout import PAD, Packing, own_mask
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.memory import Lists, Memory, Pass
from ssd_infer.families.diffusion.state import Canvas, State


class FullMemory(Memory):
    """Nothing is reused: every call runs the whole canvas of every state, each a row of its own."""

    kind: ClassVar[str] = "none"

    def evaluate(self, lists: Lists) -> Pass:
        """Run all states; shorter canvases are filled up on the right."""
        pairs = [(row, state) for row, states in enumerate(lists) for state in states]
        hidden = run_canvases(self, pairs, None)
        found = Pass(hidden.flatten(0, 1), [[] for _ in lists], [[] for _ in lists], rows=len(pairs))
        for place, (row, state) in enumerate(pairs):
            _locate(found, row, place * hidden.shape[1] + state.start, state, self.denoiser.shift)
        return found


class DualMemory(Memory):
    """Keys of the whole canvas as it was when the active block began (Fast-dLLM's dual cache, 2505.22618).

    Approximate: the rest of the canvas does not see the tokens revealed since. Refreshed at block boundaries only, so
    that stepwise and drafting decoding see the same keys however many calls they make.
    """

    kind: ClassVar[str] = "dual"
    crosses: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def __init__(self, denoiser: Denoiser, canvases: Sequence[Canvas]) -> None:
        """Begin with no row stored."""
        super().__init__(denoiser, canvases)
        self.width = canvases[0].width
        self.cache = BlockCache(len(canvases), len(denoiser.layers), 0)
        self._active = [-1] * len(canvases)
        """Start of the block each row's stored canvas was made for."""
        self._anchors: dict[int, Tensor] = {}
        """State before the active block, which predicts its first token under a logit shift."""

    def evaluate(self, lists: Lists) -> Pass:
        """Refresh the rows that entered a block in one call; run the active blocks of the others in another."""
        fresh = [row for row, states in enumerate(lists) if self._active[row] != states[0].start]
        found = Pass(torch.empty(0), [[] for _ in lists], [[] for _ in lists], calls=0)
        parts: list[Tensor] = []
        if fresh:
            parts += self._refresh([(row, lists[row][0]) for row in fresh], found)
        if len(fresh) < len(lists):
            parts += self._blocks(lists, set(fresh), found, sum(map(len, parts)))
        found.hidden = torch.cat(parts)
        return found

    def keep_rows(self, rows: list[int]) -> None:
        """Drop rows that ended."""
        super().keep_rows(rows)
        self.cache.keep_rows(rows)
        self._active = [self._active[row] for row in rows]
        self._anchors = {new: self._anchors[row] for new, row in enumerate(rows) if row in self._anchors}

    def nbytes(self) -> int:
        """Return the bytes of the stored canvases."""
        return self.cache.nbytes()

    def _refresh(self, pairs: list[tuple[int, State]], found: Pass) -> list[Tensor]:
        """Run the canvases of `(row, state)` pairs, store their keys, and locate their predictions."""
        view = BranchView(BlockCache(len(pairs), 0, 0), torch.empty(0))
        hidden = run_canvases(self, pairs, view)
        for place, (row, state) in enumerate(pairs):
            length = self.canvases[row].end
            self.cache.prefix[row] = 0
            keys = [layer[place, :, :length] for layer in view.keys]
            self.cache.put(row, keys, [layer[place, :, :length] for layer in view.values])
            self._active[row] = state.start
            self._anchors[row] = hidden[place, max(0, state.start - 1)]
            _locate(found, row, place * hidden.shape[1] + state.start, state, self.denoiser.shift)
        self.cache.finish_round()
        found.calls += 1
        found.rows += len(pairs)
        return [hidden.flatten(0, 1)]

    def _blocks(self, lists: Lists, fresh: set[int], found: Pass, size: int) -> list[Tensor]:
        """Run the drafted active blocks of the rows not in `fresh` over the stored canvases."""
        width, device = self.width, self.denoiser.device
        packings = [Packing.of([] if row in fresh else states) for row, states in enumerate(lists)]
        longest = max(len(packing.blocks) for packing in packings)
        filling = (self.denoiser.mask,) * width
        ids = [
            [
                token
                for block in [*packing.blocks, *[filling] * (longest - len(packing.blocks))]
                for token in block
            ]
            for packing in packings
        ]
        starts = [packing.starts + [0] * (longest - len(packing.starts)) for packing in packings]
        positions = torch.tensor(starts, device=device)[:, :, None] + torch.arange(width, device=device)
        mask = self._mask(packings, longest)
        ids_tensor = torch.tensor(ids, device=device)
        hidden = self.denoiser.run(ids_tensor, positions.flatten(1), self.tables, mask, self.cache)
        anchors = [self._anchors[row][None] for row in range(len(lists))] if self.denoiser.shift else []
        after = size + hidden.shape[0] * hidden.shape[1]
        for row, packing in enumerate(packings):
            for place in packing.ends:
                here = size + row * hidden.shape[1] + place * width
                shifted = self.denoiser.shift and packing.starts[place] > 0
                found.first[row].append(after + row if shifted else here)
                found.rest[row].append(here - int(self.denoiser.shift))
        found.calls += 1
        found.rows += sum(len(packing.ends) for packing in packings)
        return [hidden.flatten(0, 1), *anchors]

    def _mask(self, packings: list[Packing], longest: int) -> Tensor:
        """Return the mask `(B, 1, N, base + N)`: the stored canvas without the active block, and one's own branch."""
        denoiser, base = self.denoiser, self.cache.base
        topologies = [(*packing.parents, *[PAD] * (longest - len(packing.parents))) for packing in packings]
        own = torch.stack(
            [own_mask(item, self.width, denoiser.dtype, denoiser.device) for item in topologies]
        )
        mask = torch.cat([own.new_zeros(*own.shape[:2], base), own], dim=2)
        closed = torch.finfo(denoiser.dtype).min
        for row, start in enumerate(self._active):
            mask[row, :, start : start + self.width] = closed
            mask[row, :, self.cache.prefix[row] : base] = closed
        return mask[:, None]


def _locate(found: Pass, row: int, here: int, state: State, shift: bool) -> None:
    """Note where the predictions of a state lie whose active block begins at `here` of the flat hidden states."""
    found.first[row].append(here - int(shift and state.start > 0))
    found.rest[row].append(here - int(shift))


def canvas_text(canvas: Canvas, state: State, block_causal: bool) -> list[int]:
    """Return the ids of the whole canvas of `state`; blocks after the active one only where they would be seen."""
    text = [] if canvas.aligned else list(canvas.prompt)
    text += [token for block in state.done for token in block]
    text += state.tokens
    return text if block_causal else text + [canvas.mask] * (canvas.end - len(text))


def run_canvases(memory: Memory, pairs: Sequence[tuple[int, State]], cache: Any) -> Tensor:
    """Return hidden states `(R, T, d)` of the canvases of `(row, state)` pairs, filled up to the longest."""
    denoiser, canvases = memory.denoiser, memory.canvases
    texts = [canvas_text(canvases[row], state, denoiser.block_causal) for row, state in pairs]
    longest = max(map(len, texts))
    ids = [text + [denoiser.mask] * (longest - len(text)) for text in texts]
    positions = torch.arange(longest, device=denoiser.device)[None].expand(len(texts), -1)
    mask = _canvas_mask(denoiser, list(map(len, texts)), canvases[0].width)
    return denoiser.run(torch.tensor(ids, device=denoiser.device), positions, memory.tables, mask, cache)


def _canvas_mask(denoiser: Denoiser, lengths: list[int], width: int) -> Tensor | None:
    """Return the additive mask `(R|1, 1, T, T)` of canvases of these lengths; None where all see all."""
    longest = max(lengths)
    places = torch.arange(longest, device=denoiser.device)
    closed = None
    if denoiser.block_causal:
        closed = (places[None] // width > places[:, None] // width)[None]
    if min(lengths) < longest:
        filling = places[None, None] >= torch.tensor(lengths, device=denoiser.device)[:, None, None]
        closed = filling.expand(-1, longest, -1) if closed is None else closed | filling
    if closed is None:
        return None
    mask = torch.zeros(closed.shape, dtype=denoiser.dtype, device=denoiser.device)
    return mask.masked_fill_(closed, torch.finfo(denoiser.dtype).min)[:, None]
