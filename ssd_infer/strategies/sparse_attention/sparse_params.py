"""What `sparse_attention` is told: who selects, how much is read, and how many tokens are drafted a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, at_least
from ssd_infer.strategies.head_params import HeadParams

SelectorName = Literal["pillar", "vegas", "streaming", "snapkv", "quest"]


@dataclass(slots=True)
class SparseAttentionParams(HeadParams):
    """Who selects, how much is read, and how many tokens are drafted a round."""

    selector: SelectorName | Auto = "auto"
    ratio: float | Auto = "auto"
    """Share of a row's slots that a draft step reads."""
    min_budget: int | Auto = "auto"
    """Slots read at least."""
    gamma: int | Auto = "auto"
    cold_start: Literal["dense", "prompt"] | Auto = "auto"
    """How `pillar` begins: with a round of dense drafts (the paper), or scored by the last tokens of the prompt."""
    adapt: bool = False
    """Let γ follow the measured agreement, down to no drafts at all; an automatic γ does."""
    phases: Literal["lockstep", "balanced"] = "lockstep"
    """Whether all rows draft and verify together, or out of step, so that every pass does some of both."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check 0 < ratio <= 1, min_budget >= 1 and gamma >= 1."""
        found = HeadParams.problems(self, target)
        found += at_least("gamma", self.gamma, 1) + at_least("min_budget", self.min_budget, 1)
        if not isinstance(self.ratio, str) and not 0 < self.ratio <= 1:
            found.append(Problem("draft_params.ratio", "must be in (0, 1]", self.ratio, "try 0.05"))
        if self.phases == "balanced" and self.selector == "quest":
            rule = "must be lockstep with selector quest, which chooses anew at every step"
            found.append(Problem("draft_params.phases", rule, self.phases, "leave it out"))
        if self.phases == "balanced" and self.head not in ("auto", "full"):
            rule = "must be full with phases=balanced, whose passes draft and verify in one product with the head"
            found.append(Problem("draft_params.head", rule, self.head, "use head=full, or phases=lockstep"))
        return found
