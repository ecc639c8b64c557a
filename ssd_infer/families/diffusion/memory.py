"""What a call may reuse from calls before: nothing, the keys of finished blocks, or those of a whole old canvas.

A memory evaluates lists of states (one list a row of the batch) and afterwards keeps what the accepted state finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.state import Canvas, State

Lists = Sequence[Sequence[State]]


@dataclass(slots=True)
class Pass:
    """One evaluation: normed hidden states of all its positions, and where each state's predictors lie."""

    hidden: Tensor
    """`(M, d)`, flat."""
    first: list[list[int]]
    """[row][state] → index in `hidden` of what predicts offset 0 of the active block."""
    rest: list[list[int]]
    """[row][state] → index of what would predict offset 0 if offsets lay side by side; others follow it."""
    calls: int = 1
    rows: int = 0
    """Sequences evaluated: states of the batch (what matters when compute-bound)."""

    def index(self, row: int, state: int, offset: int) -> int:
        """Return where in `hidden` the prediction of `offset` in the active block of a state comes from."""
        return self.rest[row][state] + offset if offset else self.first[row][state]

    def only(self, rows: Sequence[int]) -> Pass:
        """Return the same pass without the rows not named in `rows`."""
        first, rest = [self.first[row] for row in rows], [self.rest[row] for row in rows]
        return Pass(self.hidden, first, rest, self.calls, self.rows)


class Memory(ABC):
    """Evaluate states of a batch of rows."""

    kind: ClassVar[str]
    """Its name in `SamplerSettings.cache`."""
    crosses: ClassVar[bool] = True
    """Whether a draft may run into the next block."""
    exact: ClassVar[bool] = True
    """Whether a call gives what a run of the whole canvas would."""

    def __init__(self, denoiser: Denoiser, canvases: Sequence[Canvas]) -> None:
        """Serve rows with these canvases."""
        self.denoiser = denoiser
        self.canvases = list(canvases)
        self.tables = denoiser.rotary(max(canvas.end for canvas in canvases))

    @abstractmethod
    def evaluate(self, lists: Lists) -> Pass:
        """Run the model on every state; the first state of a row may not be empty."""

    def keep(self, row: int, state: int, accepted: State) -> State:
        """Keep what `accepted`, the `state`-th of `row` in the last pass, has finished; return it without that."""
        del row, state
        return accepted

    def finish_round(self) -> None:
        """Finish a round: every row has kept what it keeps."""

    def keep_rows(self, rows: list[int]) -> None:
        """Drop every row not named in `rows`, which ascend."""
        self.canvases = [self.canvases[row] for row in rows]

    def nbytes(self) -> int:
        """Return the bytes held between calls."""
        return 0
