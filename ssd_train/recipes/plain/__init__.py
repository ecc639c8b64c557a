"""Ordinary next-token training: the twin a recipe is compared with."""

from __future__ import annotations

from ssd_train.recipes.info import RecipeInfo
from ssd_train.recipes.plain.rules import check_plain
from ssd_train.recipes.plain.settings import PlainConfig

INFO = RecipeInfo("plain", "causal", PlainConfig, check_plain, "ssd_train.recipes.plain.recipe:PlainRecipe")
