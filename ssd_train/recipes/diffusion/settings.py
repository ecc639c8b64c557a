"""Settings of the diffusion recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class AgreementConfig:
    """Training a masked-diffusion model to accept its own drafts."""

    pair_weight: float = 0.0
    """Factor of the symmetric KL between two noised copies of a block, where both are masked."""
    own_weight: float = 0.0
    """Factor of the cross-entropy on the blocks the model itself decodes, from states with less of them revealed."""
    own_start: float = 0.5
    """Share of the run after which the own blocks come in."""


@dataclass(slots=True)
class DiffusionConfig(RecipeConfig):
    """Masked diffusion (MDLM 2406.07524, LLaDA 2502.09992, BD3-LM 2503.09573, Dream 2508.15487)."""

    kind: str = "diffusion"
    """Always `diffusion`."""
    objective: str = "bd3lm"
    """mdlm, llada, llada_sft, bd3lm or complementary_block."""
    block_size: int = 8
    """Tokens of a block, for bd3lm and complementary_block; 0 for the others."""
    left_to_right: float = 0.0
    """bd3lm: share of blocks noised as left-to-right decoding meets them, the rest of the block masked."""
    later_weight: float = 1.0
    """bd3lm: weight in those blocks of the masked tokens after the first."""
    copies: int = 1
    """bd3lm: noised copies of each sequence in one pass, all beside one clean copy."""
    eps: float = 1e-3
    """Smallest time, so that 1/t stays finite."""
    rate_low: float = 1e-3
    """bd3lm: lowest mask rate; only [eps, 1] is a bound on the likelihood."""
    rate_high: float = 1.0
    """bd3lm: highest mask rate."""
    logit_shift: bool = False
    """Position i predicts token i+1, as in the causal model the weights come from."""
    causal_share: float = 0.0
    """Share of the run that first trains next-token prediction; every token then teaches in one causal pass."""
    mask_token: str | None = None
    """Token of the vocabulary used as mask; null takes the tokenizer's own or adds one."""
    ema: float = 0.0
    """Decay of the weight average that checkpoints hold; 0 keeps none."""
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    """Agreement of drafts."""
    chunk_tokens: int = 1024
    """Masked tokens whose logits exist at one time."""
