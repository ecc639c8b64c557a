"""LayerSkip: layer dropout and a shared early-exit head."""

from __future__ import annotations

from ssd_train.recipes.info import RecipeInfo
from ssd_train.recipes.layerskip.rules import check_layerskip
from ssd_train.recipes.layerskip.settings import LayerSkipConfig

INFO = RecipeInfo(
    "layerskip",
    "causal",
    LayerSkipConfig,
    check_layerskip,
    "ssd_train.recipes.layerskip.recipe:LayerSkipRecipe",
)
