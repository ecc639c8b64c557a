"""FreeDave (arXiv 2510.00294): the same chain, its length given by the states of a call."""

from __future__ import annotations

from typing import Any, ClassVar

from ssd_infer.strategies.fewer_steps.ssd_chain import SSDChain


class FreeDave(SSDChain):
    """Draft `draft_steps` states a call, of which the first is certain: γ = draft_steps − 1."""

    name: ClassVar[str] = "freedave"
    DRAFT_STEPS: ClassVar[int] = 4
    """The paper's own."""

    def __init__(self, gamma: int, draft_steps: int = DRAFT_STEPS, **options: Any) -> None:
        """Take the paper's parameter; `gamma` only limits it."""
        super().__init__(max(1, min(gamma, draft_steps - 1)), **options)
        self.draft_steps = draft_steps
