"""Self-speculative decoding of diffusion models, one chain (SSD, arXiv 2510.04147)."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_infer.families.diffusion.draft import Source, Standing, StateDrafter, chain, grow
from ssd_infer.families.diffusion.state import State


class SSDChain(StateDrafter):
    """Reveal the block's further positions in the order the last logits rank them, one state a step."""

    name = "ssd_chain"

    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        """Return a chain of γ states after the upcoming one, shorter where the block ends."""
        depth = self.gamma + 1
        tables = source.ahead(depth)
        nodes = chain(self.gamma)
        return [
            grow(standing, source.stepper, table, nodes, source.crosses)
            for standing, table in zip(standings, tables, strict=True)
        ]
