"""Compose a configuration from Python, as the command line would."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_infer.cli.launch import composed, typed_arguments, with_folders
from ssd_infer.config.compose import to_settings
from ssd_train.cli.register import register
from ssd_train.cli.validate import validate
from ssd_train.config.schema import Root
from ssd_train.recipes.registry import config_folders


def load_config(overrides: Sequence[str]) -> Root:
    """Return the validated configuration of `python -m ssd_train OVERRIDES`; raises ConfigError with all problems."""
    register()
    arguments = typed_arguments("train", with_folders(list(overrides), config_folders()))
    return to_settings(composed("train", arguments), Root, validate)
