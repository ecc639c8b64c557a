"""Memory of sparse drafting: the working set and the scores beside the cache."""

from __future__ import annotations

from ssd_infer.engine.target import Target

MOST_SHARE = 0.1
"""Share of plain decoding's memory that automatic settings may add to it."""


def slot_bytes(target: Target) -> int:
    """Return the bytes of the keys and values of one slot over all layers and heads."""
    heads, size = target.key_shape()
    return target.num_layers * heads * 2 * size * target.dtype.itemsize


def row_bytes(target: Target, context: int, columns: int) -> int:
    """Return what drafting adds for one row of `context` slots: `columns` gathered ones and a float32 score a slot."""
    return columns * slot_bytes(target) + 4 * target.num_layers * target.key_shape()[0] * context


def fits(target: Target, context: int, batch: int, columns: int) -> bool:
    """Tell whether drafting adds at most a tenth to the weights and the cache of plain decoding."""
    here = (
        part for part in target.model.parameters() if not part.is_meta
    )  # offloaded experts take no memory
    weights = sum(part.numel() * part.element_size() for part in here)
    plain = weights + batch * context * slot_bytes(target)
    return batch * row_bytes(target, context, columns) <= MOST_SHARE * plain
