"""What drafts with a module are told: how far to draft, when a row stops, which tokens to look at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto
from ssd_infer.strategies.head_params import HeadKind, HeadParams
from ssd_infer.strategies.tree_params import length_and_tree_problems, stop_problems

ModuleHead = HeadKind | Literal["own"]


@dataclass(slots=True)
class ModuleParams(HeadParams):
    """How many tokens to draft, the confidence below which a row stops, and the shape of a tree."""

    head: ModuleHead | Auto = field(default="auto", kw_only=True)  # type: ignore[assignment]
    """As other drafts have it, or what the module was trained with (`own`), which auto takes where that is a part."""
    gamma: int | Auto = "auto"
    confidence: float | Auto = "auto"
    tree: int | Auto = field(default=1, metadata=UNSAID)
    """Nodes a round; 1 drafts a chain, auto as many as are predicted to pay."""
    shares: list[float] | None = field(default=None, metadata=UNSAID)
    """Chance of the draft's most probable token to be right, of the next one, and so on, which shapes a tree; None is
    what calibration finds where there is one, else usual values."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check gamma >= 1, 0 <= confidence < 1, and that trees and heads are possible with `target`."""
        usual = replace(self, head="full") if self.head == "own" else self
        found = HeadParams.problems(usual, target)
        found += length_and_tree_problems(target, self.gamma, self.tree, self.shares)
        return found + stop_problems(self.confidence)
