"""The recipe's class: cross-entropy, and the squared log-normaliser of the same logits (arXiv 2204.02311)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from own_recipe.settings import SmallLogitsConfig
from ssd_train.recipes.base import Batch, StepContext, StepOutput
from ssd_train.recipes.causal import CausalRecipe


class SmallLogitsRecipe(CausalRecipe):
    """Next-token prediction whose logits are kept small."""

    name = "small_logits"

    def __init__(self, config: SmallLogitsConfig) -> None:
        """Keep the settings."""
        self.config = config
        self.chunk_tokens = config.chunk_tokens

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the summed loss of one micro-batch, and both of its terms unweighted."""
        states = self.states(model, inputs, [])
        sums = self.loss(states, [], final_weight=1.0, detach_head=False, detailed=False)
        denom, penalty = self.denominator(inputs), self.penalty(states.final)
        terms = {"final_loss": (sums.final, denom), "z_loss": (penalty.detach(), denom)}
        return StepOutput(sums.total + self.config.z_weight * penalty, denom, loss_terms=terms)

    def penalty(self, final: Tensor) -> Tensor:
        """Return Σ (log Σ_v exp z_v)² over the rows of `final` `(N, d)`, with the logits of one chunk at a time."""
        total = final.new_zeros(())
        for chunk in final.split(self.chunk_tokens):
            total = total + checkpoint(self._squared, chunk, use_reentrant=False)
        return total

    def _squared(self, chunk: Tensor) -> Tensor:
        return torch.logsumexp(self.exits.head(chunk).float(), dim=-1).square().sum()
