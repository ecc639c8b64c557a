"""A draft module inside one decoding: its keys are one more layer, whose rows have lengths of their own.

States that verification has computed wait until the next round begins. Then the module runs on them once, together with
what the round begins with, so that every round starts with keys of verified states alone. Whatever drafting wrote past
them is overwritten before it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache, as_rows
from ssd_infer.engine.kernels.products import product_view
from ssd_infer.engine.session import Session
from ssd_infer.engine.window import Window
from ssd_infer.models.draft_modules.module import DraftModule


@dataclass(slots=True)
class Pass:
    """States `(B, W, d)` of one pass of the target, the first of row b at position `starts[b]`."""

    starts: list[int]
    states: Tensor
    order: list[list[int]] | None = None
    """Which states of each row follow each other, where that is not all of them in order: a path of a tree."""

    def rows(self, kept: list[int]) -> Pass:
        """Return the pass of rows `kept` alone."""
        order = None if self.order is None else [self.order[row] for row in kept]
        index = as_rows(kept, self.states.device)
        return Pass([self.starts[row] for row in kept], self.states[index], order)


@dataclass(slots=True)
class Block:
    """States `(B, W, d)` that the module runs on at once, those of row b from position `starts[b]` on."""

    starts: list[int]
    counts: list[int]
    """How many states of each row are real; the others are overwritten later."""
    states: Tensor

    def and_one(self, state: Tensor) -> Block:
        """Return the block with one more state `(B, 1, d)` after the last of each row."""
        width = max(self.counts)
        states = torch.cat([self.states[:, :width], state], dim=1)
        if min(self.counts) < width:
            states[torch.arange(len(self.counts), device=state.device), self._places(self.counts)] = state[
                :, 0
            ]
        return Block(self.starts, [count + 1 for count in self.counts], states)

    def last(self, hidden: Tensor) -> Tensor:
        """Return what stands at the last real state of each row `(B, 1, d)`, of `hidden` `(B, W, d)`."""
        if min(self.counts) == max(self.counts):
            return hidden[:, self.counts[0] - 1 : self.counts[0]]
        rows = torch.arange(len(self.counts), device=hidden.device)
        return hidden[rows, self._places(self.counts) - 1].unsqueeze(1)

    def _places(self, counts: Sequence[int]) -> Tensor:
        return as_rows(list(counts), self.states.device)


class ModuleKeys:
    """Run a draft module on states of a session, and keep its keys."""

    def __init__(self, session: Session, module: DraftModule) -> None:
        """Begin with no keys; nothing has been heard."""
        self.session, self.module = session, module
        self.cache = RowCache(len(session.rows), session.geometry.capacity, 1)
        self.lengths = [0] * len(session.rows)
        """Slots of each row whose keys are of verified states."""
        self.passes: list[Pass] = []
        """What the target has computed since the module last ran on its states."""
        self._layers: list[nn.Module | None] = [None] * session.target.num_layers
        self._layers[module.source] = module.body if module.thin else product_view(module.body)

    def run(self, hidden: Tensor, window: Window) -> Tensor:
        """Return un-normed states `(B, T, d)` of the module's body at `window`, writing its keys there."""
        if self.module.thin:
            thin: Tensor = self.module.body(hidden)
            return thin
        source = self.module.source
        return self.session.target.run(hidden, window, self.cache, source, source + 1, self._layers)

    def run_block(self, block: Block, hidden: Tensor | None = None) -> Tensor:
        """Run the module on a block, or on `hidden` `(B, W, d)` at its place; return states `(B, W, d)`."""
        given = block.states if hidden is None else hidden
        return self.run(given, self.session.window_at(block.starts, given.shape[1]))

    def hear(self, states: Tensor) -> None:
        """Take states `(B, W, d)` of the pass that the target is in."""
        self.passes.append(Pass(list(self.session.cache.window.starts), states))

    def due(self, ends: list[int]) -> list[Block]:
        """Return what was heard and not run on yet, up to position `ends[b]` of each row, which it counts as run on.

        A later pass takes the place of what earlier ones said of the same positions.
        """
        later = [one.starts for one in self.passes[1:]] + [ends]
        found = [
            self._block(one, list(map(min, ends, after)))
            for one, after in zip(self.passes, later, strict=True)
        ]
        self.passes = []
        return [block for block in found if max(block.counts)]

    def _block(self, one: Pass, ends: list[int]) -> Block:
        """Return the states of `one` from what has keys already up to `ends`."""
        starts = [min(max(pair), end) for *pair, end in zip(self.lengths, one.starts, ends, strict=True)]
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        self.lengths = list(ends)
        width, all_states = max(counts), range(one.states.shape[1])
        chosen = []
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            order = all_states if one.order is None else one.order[row]
            first = start - one.starts[row]
            own = list(order[first : first + count])
            chosen.append(own + [0] * (width - count))
        index = torch.tensor(chosen, device=one.states.device).view(len(chosen), width, 1)
        states = one.states.gather(1, index.expand(-1, -1, one.states.shape[-1]))
        return Block(starts, counts, states)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self.cache.keep_rows(as_rows(kept, self.session.pending.device))
        self.lengths = [self.lengths[row] for row in kept]
        self.passes = [one.rows(kept) for one in self.passes]
