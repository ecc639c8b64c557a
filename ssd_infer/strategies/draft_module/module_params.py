"""What drafts with a module are told: how far to draft, when a row stops, which tokens to look at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_support import tree_problems
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, at_least
from ssd_infer.strategies.head_params import HeadKind, HeadParams
from ssd_infer.tuning.tree_shapes import shares_problems

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
        found = HeadParams.problems(usual, target) + at_least("gamma", self.gamma, 1)
        found += at_least("tree", self.tree, 1) + tree_problems(target, self.tree)
        found += shares_problems(self.shares)
        if self.confidence != "auto" and not 0 <= self.confidence < 1:
            rule = "must be in [0, 1)"
            found.append(Problem("draft_params.confidence", rule, self.confidence, "0 turns it off"))
        return found
