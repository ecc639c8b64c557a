"""What `early_exit` is told: where to exit, how far to draft, and when a row stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, at_least
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.tree_params import length_and_tree_problems, stop_problems


@dataclass(slots=True)
class EarlyExitParams(HeadParams):
    """Where to exit, how many tokens to draft, and the confidence below which a row stops drafting."""

    exit_layer: int | Auto = "auto"
    gamma: int | Auto = "auto"
    confidence: float | Auto = "auto"
    tree: int | Auto = field(default=1, metadata=UNSAID)
    """Nodes a round; 1 drafts a chain, auto as many as are predicted to pay."""
    shares: list[float] | None = field(default=None, metadata=UNSAID)
    """Chance of the draft's most probable token to be right, of the next one, and so on, which shapes a tree; None is
    what calibration finds where there is one, else usual values."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check 1 <= exit_layer < L, gamma >= 1 and 0 <= confidence < 1."""
        found = HeadParams.problems(self, target)
        found += at_least("exit_layer", self.exit_layer, 1)
        found += length_and_tree_problems(target, self.gamma, self.tree, self.shares)
        if target is not None and isinstance(self.exit_layer, int) and self.exit_layer >= target.num_layers:
            rule = f"must be < {target.num_layers}, the layers of this model"
            found.append(
                Problem(
                    "draft_params.exit_layer", rule, self.exit_layer, f"try {max(1, target.num_layers // 4)}"
                )
            )
        return found + stop_problems(self.confidence)
