"""What `reduced_experts` is told: how many experts draft, how far, and what is emitted uncompared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.offload.layout import moe_layers
from ssd_infer.strategies.base import Auto, at_least
from ssd_infer.strategies.head_params import HeadParams

Mode = Literal["lossless", "adaptive"]


@dataclass(slots=True)
class ReducedExpertsParams(HeadParams):
    """How many experts a draft uses, how far it goes, and what is emitted without being compared."""

    k_draft: int | Auto = "auto"
    gamma: int | Auto = "auto"
    """Drafts a round; in mode adaptive, drafts a round that have to be compared."""
    follow: bool | Auto = "auto"
    """Double γ, up to `gamma`, after a round that was right throughout, and cut it to what was right after others."""
    mode: Mode = "lossless"
    """`adaptive` emits confident drafts without comparing them, which is lossy."""
    renorm: Literal["model", "full_mass"] = "model"
    """Weights of the kept experts: as the router would, or scaled to the mass of all k."""
    confidence: float | Auto = "auto"
    """A row stops after a token whose lead over the runner-up, 1 - p₂/p₁, is below it; 0 turns that off. When sampling
    it is the top probability that counts."""
    at_hand: bool | Auto = "auto"
    """Draft with experts in memory only; auto: where experts are offloaded."""
    prefetch: bool | Auto = "auto"
    """Read the experts that the full router would have used while drafting goes on; auto: where that is faster."""
    tau_accept: float | Auto = "auto"
    """Mode adaptive: lead (as in `confidence`) from which a draft is not compared; auto calibrates it, above 1 compares
    all."""
    eps: float = 0.02
    """Mode adaptive: highest share of wrong tokens among those not compared, with 95 % confidence."""
    max_window: int = 64
    """Mode adaptive: most tokens between two verify passes."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check 1 <= k_draft <= k, gamma >= 1 and the shares."""
        names = ("k_draft", "gamma", "max_window")
        found = HeadParams.problems(self, target)
        found += [problem for name in names for problem in at_least(name, getattr(self, name), 1)]
        layers = [] if target is None else moe_layers(target.layers)
        top_k = min((layer.top_k for layer in layers), default=0)
        if isinstance(self.k_draft, int) and self.k_draft > top_k > 0:
            rule = f"must be <= {top_k}, the experts this model routes a token to"
            found.append(Problem("draft_params.k_draft", rule, self.k_draft, f"try {max(1, top_k // 2)}"))
        if not isinstance(self.confidence, str) and not 0 <= self.confidence < 1:
            found.append(
                Problem("draft_params.confidence", "must be in [0, 1)", self.confidence, "0 turns it off")
            )
        if not isinstance(self.tau_accept, str) and not self.tau_accept >= 0:
            found.append(Problem("draft_params.tau_accept", "must be >= 0", self.tau_accept))
        if self.mode == "adaptive" and self.head not in ("auto", "full"):
            rule = "must be full in mode adaptive, which compares the laws of draft and model over all tokens"
            found.append(Problem("draft_params.head", rule, self.head, "use head=full, or mode=lossless"))
        if not 0 < self.eps < 1:
            found.append(Problem("draft_params.eps", "must be in (0, 1)", self.eps, "try 0.02"))
        return found


@dataclass(slots=True)
class AdaptiveParams(ReducedExpertsParams):
    """The same parameters, confident drafts emitted uncompared."""

    mode: Mode = "adaptive"
    head: Literal["full"] | Auto = field(default="auto", kw_only=True)
    """The model's own: what is emitted uncompared is judged by the laws of draft and model over all tokens."""
