"""Few steps draft, the full schedule verifies: extra calls reveal many tokens each and so see some of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ssd_infer.families.diffusion.draft import Source, Standing, StateDrafter
from ssd_infer.families.diffusion.state import State
from ssd_infer.families.diffusion.step import Reading


class CoarseDraft(StateDrafter):
    """Draft γ steps from `draft_steps` sets of logits: the last call's, and those of further draft calls."""

    name: ClassVar[str] = "coarse_draft"

    def __init__(self, gamma: int, draft_steps: int = 2, **options: Any) -> None:
        """Spread γ steps over `draft_steps` ≥ 1 sets of logits; each beyond the first costs one call."""
        super().__init__(gamma, **options)
        self.draft_steps = max(1, draft_steps)

    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        """Return chains whose later steps were read with the earlier ones revealed."""
        part = -(-self.gamma // self.draft_steps)
        found = [[standing.upcoming] for standing in standings]
        tables = source.ahead(part + 1)
        for left in range(self.gamma, 0, -part):
            if left < self.gamma:
                if not any(
                    self._open(standing, chain) for standing, chain in zip(standings, found, strict=True)
                ):
                    break
                tables = source.look(
                    [self._seen(s, c) for s, c in zip(standings, found, strict=True)], part + 1
                )
            for standing, chain, table in zip(standings, found, tables, strict=True):
                self._extend(standing, chain, table, source, min(part, left))
        return found

    @staticmethod
    def _open(standing: Standing, chain: list[State]) -> bool:
        """Tell whether a chain may still grow."""
        last = chain[-1]
        return not last.ended and last.start == standing.state.start and len(chain) <= standing.limit

    @staticmethod
    def _seen(standing: Standing, chain: list[State]) -> State:
        """Return the state a draft call looks at; a finished chain looks at its own upcoming state for nothing."""
        last = chain[-1]
        return standing.state if last.ended or last.start != standing.state.start else last

    def _extend(
        self, standing: Standing, chain: list[State], table: Sequence[Reading], source: Source, steps: int
    ) -> None:
        begin = chain[-1].revealed if len(chain) > 1 else standing.state.revealed
        for _ in range(steps):
            depth = chain[-1].revealed - begin
            if not self._open(standing, chain) or depth >= len(table):
                return
            state = source.stepper.step(standing.canvas, chain[-1], table[depth])
            if not (source.crosses or state.ended or state.start == standing.state.start):
                return
            chain.append(state)
