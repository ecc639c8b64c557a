"""Rules of the mixture-of-experts recipe."""

from __future__ import annotations

from ssd_infer.config.checks import Checks
from ssd_train.config.schema import Root
from ssd_train.recipes.moe.settings import MoeConfig

RENORMS = ("model", "full_mass")
DIRECTIONS = ("forward", "reverse", "both", "js")


def check_moe(cfg: Root, checks: Checks) -> None:
    """Check factors, shares and expert counts."""
    recipe = cfg.recipe
    assert isinstance(recipe, MoeConfig)
    checks.choice("renorm", recipe.renorm, RENORMS)
    checks.choice("kl_direction", recipe.kl_direction, DIRECTIONS)
    for key in ("ce_weight", "kl_weight", "balance_weight", "overlap_weight"):
        checks.at_least(key, getattr(recipe, key), 0)
    checks.at_least("overlap_window", recipe.overlap_window, 2)
    for key in ("block", "chunk_tokens"):
        checks.at_least(key, getattr(recipe, key), 1)
    checks.require(len(recipe.at_hand) > 0, "at_hand", "must not be empty", [], "try [1.0]")
    for index, share in enumerate(recipe.at_hand):
        checks.require(0 < share <= 1, f"at_hand.{index}", "must be above 0 and at most 1", share)
    checks.require(recipe.k_draft != [], "k_draft", "must not be empty", [], "null draws from 1 to k")
    for index, k_draft in enumerate(recipe.k_draft or []):
        checks.at_least(f"k_draft.{index}", k_draft, 1)
