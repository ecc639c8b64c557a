"""What a DRAFT is: given where each row stands, the list of states its next call evaluates, STEP's own first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ssd_infer.families.diffusion.reader import Reader
from ssd_infer.families.diffusion.state import Canvas, State
from ssd_infer.families.diffusion.step import STEP, Choice, Reading, Stepper


@dataclass(slots=True)
class Standing:
    """One row between two calls: its state, and the next one, which STEP has fixed already."""

    canvas: Canvas
    state: State
    upcoming: State
    """STEP(state): the first entry of every draft."""
    limit: int
    """Most states a draft may add to it."""


class Source(Protocol):
    """What a drafter may ask the engine."""

    stepper: Stepper
    reader: Reader

    @property
    def crosses(self) -> bool:
        """Whether a draft may run into the next block."""

    def ahead(self, depth: int, *, seconds: bool = False) -> list[list[Reading]]:
        """Return each row's readings of its state at the next `depth` revealed counts, from the last call."""

    def look(self, states: Sequence[State], depth: int) -> list[list[Reading]]:
        """Run one draft call on a state of each row; return readings as `ahead` does."""


class StateDrafter(ABC):
    """Propose states; any list is lossless as long as it begins with the upcoming state."""

    name: ClassVar[str]
    lossless: ClassVar[bool] = True

    def __init__(self, gamma: int, **options: Any) -> None:
        """Draft at most `gamma` ≥ 1 states beyond the upcoming one."""
        if options:
            raise TypeError(f"draft {self.name} takes no {', '.join(options)}")
        self.gamma = gamma

    @abstractmethod
    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        """Return for each row at least its upcoming state, and at most `limit` further ones."""

    def report(self) -> dict[str, Any]:
        """Return JSON-ready facts about the draft that its counters do not show."""
        return {}


def grow(
    standing: Standing,
    stepper: Stepper,
    ahead: Sequence[Reading],
    nodes: Sequence[tuple[int, Choice]],
    crosses: bool,
) -> list[State]:
    """Return the upcoming state and one for each of `nodes`: (index of an earlier state, choice made there).

    Nodes whose parent ended, left the block or does not exist are left out; equal states appear once.
    """
    canvas, first = standing.canvas, standing.upcoming
    block, begin = standing.state.start, standing.state.revealed
    found: list[State | None] = [first]
    unique = {first: None}
    for parent, choice in nodes:
        before = found[parent]
        depth = before.revealed - begin if before is not None else 0
        if before is None or before.ended or before.start != block or depth >= len(ahead):
            found.append(None)
            continue
        state = stepper.step(canvas, before, ahead[depth], choice)
        if len(unique) > standing.limit or not (crosses or state.ended or state.start == block):
            found.append(None)
            continue
        found.append(state)
        unique[state] = None
    return list(unique)


def chain(gamma: int) -> list[tuple[int, Choice]]:
    """Return the nodes of a chain of `gamma` steps."""
    return [(index, STEP) for index in range(gamma)]
