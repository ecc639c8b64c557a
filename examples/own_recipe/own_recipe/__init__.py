"""Recipe `small_logits`: next-token training with a penalty on large logits."""

from __future__ import annotations

from own_recipe.settings import SmallLogitsConfig
from ssd_infer.config.checks import Checks
from ssd_train.config.schema import Root
from ssd_train.recipes.info import RecipeInfo


def check_small_logits(cfg: Root, checks: Checks) -> None:
    """Check the weight of the penalty and the chunk."""
    recipe = cfg.recipe
    assert isinstance(recipe, SmallLogitsConfig)
    checks.at_least("z_weight", recipe.z_weight, 0)
    checks.at_least("chunk_tokens", recipe.chunk_tokens, 1)


INFO = RecipeInfo(
    "small_logits",
    "causal",
    SmallLogitsConfig,
    check_small_logits,
    "own_recipe.recipe:SmallLogitsRecipe",
    config="pkg://own_recipe.conf",
)
