"""Keys of the recipe `small_logits`."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class SmallLogitsConfig(RecipeConfig):
    """Next-token training with a penalty on the log-normaliser."""

    kind: str = "small_logits"
    """Always `small_logits`."""
    z_weight: float = 1e-4
    """Factor of the squared log-normaliser, the mean over tokens."""
    chunk_tokens: int = 512
    """Tokens whose logits exist at one time."""
