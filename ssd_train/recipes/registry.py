"""Every recipe by name: this package's own, and those installed beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from ssd_infer.config.checks import Checks, suggest
from ssd_infer.entries import imported, loaded, named_once
from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import RecipeConfig, Root
from ssd_train.recipes.info import RecipeInfo

if TYPE_CHECKING:
    from ssd_train.recipes.base import Recipe

ENTRY_POINTS = "ssd_train.recipes"
"""Group of entry points whose values are `RecipeInfo` objects, one a name."""
ROOMS = ("layerskip", "moe", "plain", "diffusion", "asr_ctc", "frozen_target")
"""Packages beside this file; each describes itself as `INFO`, without importing torch."""


@cache
def infos() -> dict[str, RecipeInfo]:
    """Return what is known of every recipe, by name; raises ConfigError for an installed one that is none."""
    own = [cast("RecipeInfo", import_module(f"{__package__}.{room}").INFO) for room in ROOMS]
    found = {info.name: info for info in own}
    others = named_once(
        (point for point in entry_points(group=ENTRY_POINTS) if point.name not in found), "recipe"
    )
    return found | {name: _loaded(point) for name, point in others.items()}


def model_kind(name: str) -> str | None:
    """Return the kind of model that recipe `name` trains; None for a name that is none."""
    known = infos().get(name)
    return None if known is None else known.kind


def get(name: str) -> Callable[[RecipeConfig], Recipe]:
    """Import the class of recipe `name`; raises ConfigError listing the names there are."""
    if name not in infos():
        rule, remedy = "is not a recipe", suggest(name, infos())
        raise ConfigError([Problem("recipe.kind", rule, name, remedy)])
    return cast("Callable[[RecipeConfig], Recipe]", imported(infos()[name].place))


def build(config: RecipeConfig) -> Recipe:
    """Return the recipe `config.kind` names."""
    make: Callable[[RecipeConfig], Recipe] = get(config.kind)
    return make(config)


def check_recipe(cfg: Root, checks: Checks) -> None:
    """Check the recipe by its own rules, against the model where they touch."""
    kind = cfg.recipe.kind
    if checks.require(kind in infos(), "kind", "is not a recipe", kind, suggest(kind, infos())):
        infos()[kind].rules(cfg, checks)


def config_folders() -> Sequence[str]:
    """Return where the YAML files of installed recipes lie, as entries of Hydra's search path."""
    return [info.config for info in infos().values() if info.config is not None]


def _loaded(point: EntryPoint) -> RecipeInfo:
    """Import the recipe behind an entry point."""
    info: object = loaded(point, "recipe")
    if not isinstance(info, RecipeInfo) or info.name != point.name:
        rule = f"must be the entry point of a RecipeInfo of that name, and {point.value} is none"
        raise ConfigError([Problem("recipe", rule, point.name, "repair or uninstall that package")])
    return info
