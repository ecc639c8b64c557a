"""The plain recipe: ordinary next-token training through the same head, the twin every recipe is compared with."""

from __future__ import annotations

from torch import nn

from ssd_train.recipes.base import Batch, StepContext, StepOutput
from ssd_train.recipes.causal import CausalRecipe
from ssd_train.recipes.plain.settings import PlainConfig


class PlainRecipe(CausalRecipe):
    """Cross-entropy of the last layer, nothing else; its exits are measured all the same."""

    name = "plain"

    def __init__(self, config: PlainConfig) -> None:
        """Keep the settings."""
        self.chunk_tokens = config.chunk_tokens

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the summed cross-entropy of one micro-batch."""
        states = self.states(model, inputs, [])
        sums = self.loss(states, [], final_weight=1.0, detach_head=False, detailed=False)
        denom = self.denominator(inputs)
        return StepOutput(sums.total, denom, loss_terms={"final_loss": (sums.final, denom)})
