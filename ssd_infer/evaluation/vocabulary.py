"""Refuse token ids that the model has no embedding for."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_infer.errors import CheckpointError, DataError


def check_ids(source: str, prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise when an id of `prompts` is outside the vocabulary: DataError for a `file:` source, else CheckpointError."""
    wrong = next((token for ids in prompts for token in ids if not 0 <= token < vocab_size), None)
    if wrong is None:
        return
    rule = f"must be below the model's vocab_size of {vocab_size} (got {wrong})"
    if source.startswith("file:"):
        raise DataError(f"tasks: token ids in {source} {rule}; give ids of this checkpoint's own tokenizer")
    raise CheckpointError(
        f"checkpoint: ids of its tokenizer {rule}; save the tokenizer it was trained with beside the model"
    )
