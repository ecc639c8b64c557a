"""Rules of the plain recipe."""

from __future__ import annotations

from ssd_infer.config.checks import Checks
from ssd_train.config.schema import Root
from ssd_train.recipes.plain.settings import PlainConfig


def check_plain(cfg: Root, checks: Checks) -> None:
    """Check the chunk."""
    recipe = cfg.recipe
    assert isinstance(recipe, PlainConfig)
    checks.at_least("chunk_tokens", recipe.chunk_tokens, 1)
