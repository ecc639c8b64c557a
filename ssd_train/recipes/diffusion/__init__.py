"""Masked diffusion."""

from __future__ import annotations

from ssd_train.recipes.diffusion.rules import check_diffusion
from ssd_train.recipes.diffusion.settings import DiffusionConfig
from ssd_train.recipes.info import RecipeInfo

INFO = RecipeInfo(
    "diffusion",
    "diffusion",
    DiffusionConfig,
    check_diffusion,
    "ssd_train.recipes.diffusion.recipe:DiffusionRecipe",
)
