"""Rules of the diffusion recipe."""

from __future__ import annotations

from ssd_infer.config.checks import Checks
from ssd_train.config.schema import Root
from ssd_train.recipes.diffusion.settings import AgreementConfig, DiffusionConfig

OBJECTIVES = ("mdlm", "llada", "llada_sft", "bd3lm", "complementary_block")
BLOCK_OBJECTIVES = ("bd3lm", "complementary_block")


def check_diffusion(cfg: Root, checks: Checks) -> None:
    """Check a diffusion recipe against itself and against the data."""
    recipe = cfg.recipe
    assert isinstance(recipe, DiffusionConfig)
    known = checks.choice("objective", recipe.objective, OBJECTIVES)
    checks.at_least("copies", recipe.copies, 1)
    checks.at_least("chunk_tokens", recipe.chunk_tokens, 1)
    checks.at_least("later_weight", recipe.later_weight, 0)
    checks.within("left_to_right", recipe.left_to_right, 0, 1)
    checks.within("causal_share", recipe.causal_share, 0, 1, open_end=True)
    rule = "begins as a causal model, whose position i predicts token i+1: needs recipe.logit_shift=true"
    kept = recipe.causal_share == 0 or recipe.logit_shift
    checks.require(kept, "causal_share", rule, recipe.causal_share, "set recipe.logit_shift=true")
    checks.within("ema", recipe.ema, 0, 1, open_end=True)
    good = checks.above_zero("eps", recipe.eps) and checks.within("eps", recipe.eps, 0, 1, open_end=True)
    if good:
        checks.within("rate_low", recipe.rate_low, recipe.eps, 1)
        rule = f"must lie above recipe.rate_low, {recipe.rate_low}, and be at most 1"
        checks.require(recipe.rate_low < recipe.rate_high <= 1, "rate_high", rule, recipe.rate_high)
    if known:
        _check_blocks(recipe, cfg.data.block_size, checks)
    _check_agreement(recipe, checks.under("agreement"))


def _check_blocks(recipe: DiffusionConfig, length: int, checks: Checks) -> None:
    """Check the block size against the objective and the canvas, and what only blocks can have."""
    size, objective = recipe.block_size, recipe.objective
    if objective not in BLOCK_OBJECTIVES:
        rule = f"must be 0 with objective={objective}, whose one block is the whole sequence"
        checks.require(size == 0, "block_size", rule, size, "try recipe.block_size=0")
    elif checks.at_least("block_size", size, 1, "try 8"):
        rule = f"must divide the canvas, data.block_size = {length}"
        fits = [n for n in range(1, length + 1) if length % n == 0]
        near = min(fits, key=lambda n: abs(n - size))
        checks.require(length % size == 0, "block_size", rule, size, f"try recipe.block_size={near}")
    only = objective == "bd3lm"
    for key, neutral in (("left_to_right", 0), ("copies", 1)):
        value = getattr(recipe, key)
        rule = f"needs objective=bd3lm (got objective={objective})"
        checks.require(only or value == neutral, key, rule, value, f"set recipe.{key}={neutral}")


def _check_agreement(recipe: DiffusionConfig, checks: Checks) -> None:
    """Check the factors, and that there is what they compare."""
    settings: AgreementConfig = recipe.agreement
    checks.at_least("pair_weight", settings.pair_weight, 0)
    checks.at_least("own_weight", settings.own_weight, 0)
    checks.within("own_start", settings.own_start, 0, 1)
    paired = settings.pair_weight == 0 or (recipe.objective == "bd3lm" and recipe.copies >= 2)
    rule = "compares two noised copies of a block, which objective=bd3lm with recipe.copies >= 2 makes"
    checks.require(paired, "pair_weight", rule, settings.pair_weight, "set recipe.copies=2")
    blocks = settings.own_weight == 0 or recipe.objective in BLOCK_OBJECTIVES
    rule = "needs a model trained in blocks, objective=bd3lm or complementary_block"
    checks.require(blocks, "own_weight", rule, settings.own_weight, "set recipe.agreement.own_weight=0")
