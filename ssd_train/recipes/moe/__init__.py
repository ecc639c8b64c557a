"""Mixture of experts whose reduced self drafts for it."""

from __future__ import annotations

from ssd_train.recipes.info import RecipeInfo
from ssd_train.recipes.moe.rules import check_moe
from ssd_train.recipes.moe.settings import MoeConfig

INFO = RecipeInfo("moe", "causal", MoeConfig, check_moe, "ssd_train.recipes.moe.recipe:MoeRecipe")
