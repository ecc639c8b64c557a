"""States of a masked-diffusion decoding: what is revealed of the active block, and the blocks finished before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Block = tuple[int, ...]


class State(NamedTuple):
    """One state of one row; states are equal exactly when decoding goes on the same way from them."""

    start: int
    """Absolute position of the active block's first token."""
    tokens: Block
    """The active block, mask tokens where nothing is revealed; empty once the row has ended."""
    clock: int
    """Steps taken in this block."""
    revealed: int
    """Tokens revealed since the prompt: the noise of the next step is keyed by it."""
    done: tuple[Block, ...]
    """Finished blocks before `start` whose keys no cache holds yet."""
    ended: bool = False

    def revealed_here(self, canvas: Canvas) -> int:
        """Return the tokens of the active block that decoding revealed, the prompt's own not counted."""
        given = max(0, len(canvas.prompt) - self.start)
        return len(self.tokens) - self.tokens.count(canvas.mask) - given


@dataclass(frozen=True, slots=True)
class Canvas:
    """What never changes about one row: its prompt, where its output ends, its blocks, its seed."""

    prompt: Block
    limit: int
    """Absolute position after the last token that may be emitted."""
    width: int
    """Tokens of a block."""
    mask: int
    """Id of the mask token."""
    eos: frozenset[int] = frozenset()
    seed: int = 0
    aligned: bool = True
    """Whether blocks begin at multiples of `width` (models trained in blocks), or after the prompt."""

    @property
    def origin(self) -> int:
        """Absolute position of the block in which the output begins."""
        length = len(self.prompt)
        return length - length % self.width if self.aligned else length

    @property
    def end(self) -> int:
        """Absolute position after the last block."""
        return self.origin + -(-(self.limit - self.origin) // self.width) * self.width

    def first(self) -> State:
        """Return the state before the first step; the prompt's full blocks are `done` where blocks are aligned."""
        tail = self.prompt[self.origin :]
        blocks = range(0, self.origin, self.width) if self.aligned else range(0)
        done = tuple(self.prompt[start : start + self.width] for start in blocks)
        return State(self.origin, tail + (self.mask,) * (self.width - len(tail)), 0, 0, done)

    def masked(self, state: State) -> list[int]:
        """Return the offsets in the active block that are not revealed."""
        mask = self.mask
        return [offset for offset, token in enumerate(state.tokens) if token == mask]

    def after(self, state: State, reveals: Iterable[tuple[int, int]], clock: int) -> State:
        """Return the state once `(offset, token)` pairs are revealed; a full block opens the next one.

        The row ends as soon as nothing masked lies before its limit and its first EOS.
        """
        tokens = list(state.tokens)
        revealed = state.revealed
        for offset, token in reveals:
            tokens[offset] = token
            revealed += 1
        block = tuple(tokens)
        first_mask = block.index(self.mask) if self.mask in block else self.width
        needed = min(self.limit - state.start, self._eos_at(state, block))
        if first_mask >= needed:
            return State(state.start, block, clock, revealed, state.done, ended=True)
        if first_mask < self.width:
            return State(state.start, block, clock, revealed, state.done)
        fresh = (self.mask,) * self.width
        return State(state.start + self.width, fresh, 0, revealed, (*state.done, block))

    def _eos_at(self, state: State, block: Block) -> int:
        """Return the offset of the first EOS revealed in the output part of `block`; past its end without one."""
        if self.eos.isdisjoint(block):
            return self.width + self.limit
        begin = max(0, len(self.prompt) - state.start)
        return next((i for i in range(begin, self.width) if block[i] in self.eos), self.width + self.limit)

    def cut(self, text: list[int]) -> list[int]:
        """Return the output in `text`, which begins at position `len(prompt)`: up to the limit and the first EOS."""
        output = text[: self.limit - len(self.prompt)]
        at = next((index for index, token in enumerate(output) if token in self.eos), None)
        return output if at is None else output[: at + 1]
