"""A draft graph calibrated offline on the model's own decodings, pruned at run time (Spiffy, arXiv 2509.18085)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ssd_infer.families.diffusion.draft import Source, Standing, StateDrafter, chain, grow
from ssd_infer.families.diffusion.state import State
from ssd_infer.families.diffusion.step import STEP, Choice

Path = tuple[Choice, ...]
"""Choices made one after another from the upcoming state, all judged by the logits before it."""


class Spiffy(StateDrafter):
    """Check the γ most travelled paths; different orders of the same reveals meet in one state of the graph."""

    name: ClassVar[str] = "spiffy"

    def __init__(
        self, gamma: int, graph: Sequence[Sequence[Sequence[int]]] | None = None, **options: Any
    ) -> None:
        """Take the calibrated paths, most travelled first; without any the graph is a chain."""
        super().__init__(gamma, **options)
        paths = [tuple((int(a), int(t)) for a, t in path) for path in graph or ()]
        self.paths: list[Path] = paths
        self._nodes = as_nodes(paths, gamma) if paths else chain(gamma)

    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        """Return the graph's states for each row; what the block has no room for is pruned."""
        seconds = any(choice[1] for _, choice in self._nodes)
        tables = source.ahead(self.gamma + 1, seconds=seconds)
        return [
            grow(standing, source.stepper, table, self._nodes, source.crosses)
            for standing, table in zip(standings, tables, strict=True)
        ]

    def report(self) -> dict[str, Any]:
        """Return the graph."""
        return {"graph": [[list(choice) for choice in path] for path in self.paths[: self.gamma]]}


def as_nodes(paths: Iterable[Path], gamma: int) -> list[tuple[int, Choice]]:
    """Return at most `gamma` nodes for `grow`, each path after its prefixes."""
    places: dict[Path, int] = {(): 0}
    nodes: list[tuple[int, Choice]] = []
    for path in paths:
        for end in range(1, len(path) + 1):
            head = path[:end]
            if head in places or len(nodes) >= gamma:
                continue
            nodes.append((places[head[:-1]], head[-1]))
            places[head] = len(nodes)
    return nodes


def most_travelled(paths: Iterable[Path], count: int) -> list[Path]:
    """Return the `count` most frequent prefixes of `paths`, which is closed under prefixes: none outranks its own."""
    seen: Counter[Path] = Counter(path[:end] for path in paths for end in range(1, len(path) + 1))
    ranked = sorted(seen, key=lambda path: (-seen[path], len(path), path))
    return ranked[:count] or [(STEP,)]
