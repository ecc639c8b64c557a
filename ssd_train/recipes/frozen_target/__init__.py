"""A draft module is trained beside a model that stays as it is."""

from __future__ import annotations

from ssd_train.recipes.frozen_target.rules import check_frozen_target
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig
from ssd_train.recipes.info import RecipeInfo

INFO = RecipeInfo(
    "frozen_target",
    "causal",
    FrozenTargetConfig,
    check_frozen_target,
    "ssd_train.recipes.frozen_target.recipe:FrozenTargetRecipe",
)
