"""What is known of a recipe before torch is loaded: its keys, its rules, and where its class is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ssd_infer.config.checks import Checks
from ssd_train.config.schema import RecipeConfig, Root


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """One recipe; a package of its own gives this object as an entry point `ssd_train.recipes`."""

    name: str
    """What `+recipe=` takes and `recipe.kind` holds."""
    kind: str
    """Kind of model it trains: causal, diffusion or speech."""
    settings: type[RecipeConfig]
    """Dataclass (with slots) of the keys under `recipe.`; unknown keys are refused with the nearest known one."""
    rules: Callable[[Root, Checks], None]
    """Note every broken rule of a configuration, keyed below `recipe.`."""
    place: str
    """`module:Class` of its Recipe, imported when it trains."""
    config: str | None = None
    """Where its YAML file `recipe/NAME.yaml` lies when that is outside this toolkit, such as `pkg://my_package.conf`."""
