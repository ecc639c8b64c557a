"""Settings of the mixture-of-experts recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class MoeConfig(RecipeConfig):
    """Mixture of experts whose reduced self drafts for it: random top-k and random experts at hand."""

    kind: str = "moe"
    """Always `moe`."""
    k_draft: list[int] | None = None
    """Experts a token of the draft, one drawn a step; null draws from 1 to k."""
    at_hand: list[float] = field(default_factory=lambda: [0.25, 0.5, 1.0])
    """Shares of a layer's experts the draft may choose from, one drawn a step: what a cache would hold."""
    block: int = 8
    """Tokens between two changes of what is at hand: those most used in the block before."""
    renorm: str = "model"
    """Weights of the kept experts: model (as the router would), or full_mass (scaled to the mass of all k)."""
    ce_weight: float = 0.3
    """Factor of the draft's cross-entropy."""
    kl_weight: float = 1.0
    """Factor of the divergence between draft and full model."""
    kl_direction: str = "forward"
    """Divergence: forward is KL(full || draft), reverse is KL(draft || full), both is their mean, js Jensen-Shannon."""
    detach_teacher: bool = True
    """Stop the divergence's gradient at the full model's distribution."""
    balance_weight: float = 0.02
    """Factor of the load-balancing loss, the mean of each layer's own."""
    overlap_weight: float = 0.0
    """Factor of the expected experts that consecutive tokens need together, over k."""
    overlap_window: int = 8
    """Tokens whose experts should overlap."""
    chunk_tokens: int = 512
    """Tokens whose logits exist at one time."""
