"""The recipes: a registry from the name in the configuration to the class."""

from __future__ import annotations

from typing import Any

from ssd_train.config.schema import RecipeConfig
from ssd_train.recipes.asr_ctc.recipe import ASRCTCRecipe
from ssd_train.recipes.base import Batch, Ratio, Recipe, StepContext, StepOutput, TrainingData
from ssd_train.recipes.diffusion.recipe import DiffusionRecipe
from ssd_train.recipes.layerskip.recipe import LayerSkipRecipe
from ssd_train.recipes.moe.recipe import MoeRecipe
from ssd_train.recipes.plain import PlainRecipe

REGISTRY: dict[str, Any] = {
    "asr_ctc": ASRCTCRecipe,
    "diffusion": DiffusionRecipe,
    "layerskip": LayerSkipRecipe,
    "moe": MoeRecipe,
    "plain": PlainRecipe,
}

__all__ = ["REGISTRY", "Batch", "Ratio", "Recipe", "StepContext", "StepOutput", "TrainingData", "build"]


def build(config: RecipeConfig) -> Recipe:
    """Return the recipe `config.kind` names."""
    recipe: Recipe = REGISTRY[config.kind](config)
    return recipe
