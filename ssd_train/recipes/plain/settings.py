"""Settings of the plain recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class PlainConfig(RecipeConfig):
    """Ordinary next-token training: the twin a recipe is compared with."""

    kind: str = "plain"
    """Always `plain`."""
    chunk_tokens: int = 512
    """Tokens whose logits exist at one time."""
