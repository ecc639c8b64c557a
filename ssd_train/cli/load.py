"""Compose a configuration from Python, as the command line would."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from ssd_infer.cli.launch import typed_arguments, with_folders
from ssd_infer.config.compose import config_directory, to_settings
from ssd_train.cli.register import register
from ssd_train.cli.validate import validate
from ssd_train.config.schema import Root
from ssd_train.recipes.registry import config_folders


def load_config(overrides: Sequence[str]) -> Root:
    """Return the validated configuration of `python -m ssd_train OVERRIDES`; raises ConfigError with all problems."""
    register()
    GlobalHydra.instance().clear()
    where = config_directory()
    packaged = where.startswith("pkg://")
    opened = (
        initialize_config_module(where.removeprefix("pkg://"), version_base="1.3")
        if packaged
        else initialize_config_dir(where, version_base="1.3")
    )
    with opened:
        return to_settings(
            compose(
                "train", overrides=typed_arguments("train", with_folders(list(overrides), config_folders()))
            ),
            Root,
            validate,
        )
