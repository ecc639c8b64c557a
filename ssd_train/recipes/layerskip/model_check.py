"""Whether a model suits LayerSkip, told from its configuration before any weight loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from transformers import PretrainedConfig

from ssd_infer.errors import ConfigError, Problem, UnsupportedModelError
from ssd_train.config.schema import Root
from ssd_train.models.build import SKIPPABLE, position_problems
from ssd_train.recipes.layerskip.settings import LayerSkipConfig


def check_model(cfg: Root, config: PretrainedConfig) -> None:
    """Raise `UnsupportedModelError` for layers that cannot be skipped, `ConfigError` for exits outside the model."""
    if config.model_type not in SKIPPABLE:
        raise UnsupportedModelError(
            f"recipe layerskip: {config.model_type} models are not supported, because their decoder does not run "
            "`model.layers` followed by `model.norm` with rotary positions; "
            f"use a {', '.join(sorted(SKIPPABLE))} model"
        )
    recipe = cast("LayerSkipConfig", cfg.recipe)
    problems = list(_exit_problems(recipe.early_exit.exits, config.num_hidden_layers))
    problems += position_problems(cfg, config)
    if problems:
        raise ConfigError(problems)


def _exit_problems(exits: list[int] | None, layers: int) -> Iterator[Problem]:
    for exit_layer in exits or []:
        if not 1 <= exit_layer < layers:
            yield Problem(
                "recipe.early_exit.exits",
                f"must lie between 1 and {layers - 1}, since the model has {layers} layers",
                exit_layer,
                f"try recipe.early_exit.exits=[{max(1, layers // 4)}]",
            )
