"""Self-speculative decoding with alternatives at every depth (SSD's mixed orders, arXiv 2510.04147)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ssd_infer.families.diffusion.draft import Source, Standing, StateDrafter, grow
from ssd_infer.families.diffusion.state import State
from ssd_infer.families.diffusion.step import STEP, Choice


class SSDTree(StateDrafter):
    """A chain, and beside its first steps what would follow if the order swapped or the second-best token won.

    Where the order depends on confidence the alternative is a later position; where it is fixed, another token.
    """

    name: ClassVar[str] = "ssd_tree"

    def __init__(self, gamma: int, width: int = 2, **options: Any) -> None:
        """Give each depth up to `width` − 1 alternatives, the shallow ones first, within γ states in all."""
        super().__init__(gamma, **options)
        self.width = width

    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        """Return the tree's states for each row."""
        swaps = source.stepper.settings.needs_scores
        tables = source.ahead(self.gamma + 1, seconds=not swaps)
        nodes = self.nodes(swaps)
        return [
            grow(standing, source.stepper, table, nodes, source.crosses)
            for standing, table in zip(standings, tables, strict=True)
        ]

    def nodes(self, swaps: bool) -> list[tuple[int, Choice]]:
        """Return trunk and alternatives by depth: a trunk step, then the alternatives beside it and one step on."""
        nodes: list[tuple[int, Choice]] = []
        trunk = 0
        while len(nodes) < self.gamma:
            nodes.append((trunk, STEP))
            following = len(nodes)
            for rank in range(1, self.width):
                choice: Choice = (rank, 0) if swaps else (0, 1)
                nodes.append((trunk, choice))
                nodes.append((len(nodes), STEP))
                if not swaps:
                    break  # a reading holds two tokens a position
            trunk = following
        return nodes[: self.gamma]
