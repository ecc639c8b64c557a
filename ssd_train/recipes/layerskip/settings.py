"""Settings of the LayerSkip recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class LayerDropoutConfig:
    """Stochastic depth of LayerSkip (arXiv 2404.16710, section 4.1): `p(l, t) = S(t) D(l) p_max`."""

    enabled: bool = True
    """Skip layers at random while training."""
    p_max: float = 0.1
    """Probability at the last layer and the end of the schedule."""
    layer_scale: str = "exp"
    """D(l): exp, linear or uniform."""
    time_scale: str = "const"
    """S(t): const (continual training) or exp (from scratch)."""


@dataclass(slots=True)
class EarlyExitConfig:
    """Early-exit loss of LayerSkip (arXiv 2404.16710, section 4.2), with distillation beside it.

    Exits are layer counts as in decoding: exit E predicts from the output of layers 0..E-1.
    """

    e_scale: float = 0.2
    """Weight of the exits against the last layer, in [0, 1]."""
    weights: str = "sum"
    """Growth of the weight with depth: sum (the paper's), linear or uniform."""
    curriculum: str = "rotational"
    """Which exits are on at a step: rotational, gradual, all or none."""
    period: int = 8
    """R of the rotational curriculum: each exit is on every R-th step."""
    exits: list[int] | None = None
    """Exits that take part; null means every layer."""
    ce_weight: float = 1.0
    """Factor of the exits' cross-entropy."""
    distill_weight: float = 0.0
    """Factor of the divergence between an exit and the final distribution."""
    distill_direction: str = "forward"
    """Divergence: forward is KL(final || exit), reverse is KL(exit || final), both is their mean, js Jensen-Shannon."""
    agreement_weight: float = 0.0
    """Factor of the loss on the probability that draft and target agree."""
    detach_teacher: bool = True
    """Stop the distillation gradient at the final distribution."""
    detach_head: bool = False
    """Keep the exits' gradient out of the shared head and norm."""
    chunk_tokens: int = 512
    """Tokens whose logits exist at one time."""


@dataclass(slots=True)
class LayerSkipConfig(RecipeConfig):
    """LayerSkip: layer dropout and a shared early-exit head (arXiv 2404.16710)."""

    kind: str = "layerskip"
    """Always `layerskip`."""
    layer_dropout: LayerDropoutConfig = field(default_factory=LayerDropoutConfig)
    """Stochastic depth."""
    early_exit: EarlyExitConfig = field(default_factory=EarlyExitConfig)
    """Loss of the exits."""
