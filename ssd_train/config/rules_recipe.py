"""Rules of the recipe nodes; a recipe adds its function to `_RULES`."""

from __future__ import annotations

from collections.abc import Callable

from ssd_infer.config.checks import Checks, suggest
from ssd_train.config.rules_diffusion import check_diffusion
from ssd_train.config.rules_inputs import layer_count
from ssd_train.config.rules_speech import check_asr_ctc
from ssd_train.config.schema import (
    EarlyExitConfig,
    LayerDropoutConfig,
    LayerSkipConfig,
    MoeConfig,
    PlainConfig,
    Root,
)

LAYER_SCALES = ("exp", "linear", "uniform")
TIME_SCALES = ("const", "exp")
EXIT_WEIGHTS = ("sum", "linear", "uniform")
CURRICULA = ("rotational", "gradual", "all", "none")
RENORMS = ("model", "full_mass")
DIRECTIONS = ("forward", "reverse", "both", "js")


def check_recipe(cfg: Root, checks: Checks) -> None:
    """Check the recipe by its kind, against the model where they touch."""
    kind = cfg.recipe.kind
    if checks.require(kind in _RULES, "kind", "is not a recipe", kind, suggest(kind, _RULES)):
        _RULES[kind](cfg, checks)


def check_exits(exits: list[int] | None, layers: int | None, checks: Checks) -> None:
    """Check that every exit E satisfies 1 <= E < L; with `layers` unknown only the lower end can be checked."""
    if exits is None:
        return
    checks.require(len(exits) > 0, "exits", "must name at least one exit", exits, "null takes every layer")
    checks.require(len(set(exits)) == len(exits), "exits", "must not repeat an exit", exits)
    top = f" and below the model's {layers} layers" if layers else ""
    for index, layer in enumerate(exits):
        inside = layer >= 1 and (layers is None or layer < layers)
        remedy = f"the last exit is {layers - 1}" if layers else ""
        checks.require(inside, f"exits.{index}", f"must be at least 1{top}", layer, remedy)


def _layerskip(cfg: Root, checks: Checks) -> None:
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


def _moe(cfg: Root, checks: Checks) -> None:
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


def _plain(cfg: Root, checks: Checks) -> None:
    recipe = cfg.recipe
    assert isinstance(recipe, PlainConfig)
    checks.at_least("chunk_tokens", recipe.chunk_tokens, 1)


_RULES: dict[str, Callable[[Root, Checks], None]] = {
    "diffusion": check_diffusion,
    "layerskip": _layerskip,
    "moe": _moe,
    "plain": _plain,
    "asr_ctc": check_asr_ctc,
}
