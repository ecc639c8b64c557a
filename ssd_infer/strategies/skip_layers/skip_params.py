"""What a skip set is told: which sublayers to leave out, how far to draft, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.tree_params import length_and_tree_problems


@dataclass(slots=True)
class SkipSetParams(HeadParams):
    """Which sublayers to skip, how many tokens to draft, and the threshold that ends a draft early."""

    skip_attention: list[int] | Auto = "auto"
    skip_mlp: list[int] | Auto = "auto"
    gamma: int | Auto = "auto"
    confidence: float | Auto = "auto"
    """θ: a row stops after a token whose top probability is below it; 0 turns that off."""
    adapt: bool = True
    """Let θ follow the acceptance rate."""
    aim: float | Auto = "auto"
    """A*, the acceptance that θ is steered to; auto is what calibration predicts, 0.9 without calibration."""
    epsilon: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    guard: float | Auto = "auto"
    """Running speedup, by recent acceptance and measured costs, below which a stream is decoded plainly for a while; 0
    never stops. Auto guards a set that was found, not one that was given."""
    tree: int | Auto = field(default=1, metadata=UNSAID)
    """Nodes a round; 1 drafts a chain, auto as many as are predicted to pay. γ then bounds the depth, and θ stays."""
    shares: list[float] | None = field(default=None, metadata=UNSAID)
    """Chance of the draft's most probable token to be right, of the next one, and so on, which shapes a tree; None is
    what calibration finds where there is one, else usual values."""

    @property
    def resolved(self) -> bool:
        """Tell whether no search and no calibration is needed."""
        return "auto" not in (self.skip_attention, self.skip_mlp, self.gamma, self.confidence, self.tree)

    @property
    def skips(self) -> SkipSet | None:
        """The given skip set; None when any part of it is auto."""
        if isinstance(self.skip_attention, str) or isinstance(self.skip_mlp, str):
            return None
        return SkipSet.of(self.skip_attention, self.skip_mlp)

    def problems(self, target: Target | None) -> list[Problem]:
        """Check layer numbers, gamma >= 1 and that shares lie in [0, 1]."""
        found = HeadParams.problems(self, target)
        found += length_and_tree_problems(target, self.gamma, self.tree, self.shares)
        for name in ("skip_attention", "skip_mlp"):
            found += _bad_layers(name, getattr(self, name), None if target is None else target.num_layers)
        if (self.skip_attention == "auto") != (self.skip_mlp == "auto"):
            key = "skip_mlp" if self.skip_mlp == "auto" else "skip_attention"
            rule = "must be given when the other list is"
            found.append(Problem(f"draft_params.{key}", rule, "auto", "an empty list skips none"))
        for name in ("confidence", "aim", "epsilon", "beta1", "beta2"):
            value = getattr(self, name)
            if not isinstance(value, str) and not 0 <= value <= 1:
                found.append(Problem(f"draft_params.{name}", "must be in [0, 1]", value))
        if not isinstance(self.guard, str) and not self.guard >= 0:
            found.append(Problem("draft_params.guard", "must be >= 0", self.guard, "0 never stops"))
        return found


def _bad_layers(name: str, layers: list[int] | str, count: int | None) -> list[Problem]:
    if isinstance(layers, str):
        return []
    wrong = [layer for layer in layers if layer < 0 or (count is not None and layer >= count)]
    rule = f"must hold layer numbers from 0 to {'L-1' if count is None else count - 1}"
    return [Problem(f"draft_params.{name}", rule, layer) for layer in wrong[:1]]
