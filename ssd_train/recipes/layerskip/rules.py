"""Rules of the LayerSkip recipe."""

from __future__ import annotations

from ssd_infer.config.checks import Checks
from ssd_train.config.rules_inputs import check_exits, layer_count
from ssd_train.config.schema import Root
from ssd_train.recipes.layerskip.settings import EarlyExitConfig, LayerDropoutConfig, LayerSkipConfig

LAYER_SCALES = ("exp", "linear", "uniform")
TIME_SCALES = ("const", "exp")
EXIT_WEIGHTS = ("sum", "linear", "uniform")
CURRICULA = ("rotational", "gradual", "all", "none")
DIRECTIONS = ("forward", "reverse", "both", "js")


def check_layerskip(cfg: Root, checks: Checks) -> None:
    """Check layer dropout, the exits and their losses."""
    recipe = cfg.recipe
    assert isinstance(recipe, LayerSkipConfig)
    _check_dropout(recipe.layer_dropout, checks.under("layer_dropout"))
    _check_early_exit(recipe.early_exit, checks.under("early_exit"))
    check_exits(recipe.early_exit.exits, layer_count(cfg.model), checks.under("early_exit"))


def _check_dropout(dropout: LayerDropoutConfig, checks: Checks) -> None:
    checks.within("p_max", dropout.p_max, 0, 1, open_end=True)
    checks.choice("layer_scale", dropout.layer_scale, LAYER_SCALES)
    checks.choice("time_scale", dropout.time_scale, TIME_SCALES)


def _check_early_exit(loss: EarlyExitConfig, checks: Checks) -> None:
    checks.within("e_scale", loss.e_scale, 0, 1)
    checks.choice("weights", loss.weights, EXIT_WEIGHTS)
    checks.choice("curriculum", loss.curriculum, CURRICULA)
    checks.choice("distill_direction", loss.distill_direction, DIRECTIONS)
    checks.at_least("period", loss.period, 1)
    checks.at_least("chunk_tokens", loss.chunk_tokens, 1)
    factors = ("ce_weight", "distill_weight", "agreement_weight")
    for key in factors:
        checks.at_least(key, getattr(loss, key), 0)
    used = loss.curriculum == "none" or any(getattr(loss, key) > 0 for key in factors)
    rule = "must be above 0, or distill_weight or agreement_weight must be"
    checks.require(used, "ce_weight", rule, loss.ce_weight, "curriculum=none switches the exits off")
