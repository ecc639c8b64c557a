"""Positions, masks and keys of a rollout over a whole block: every token of a text is the start of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.errors import UnsupportedModelError

_BY_TOKEN = ("position_embeddings", "position_ids", "cache_position")
"""What a layer is given for each token, and nothing for pairs of them."""


class StepKeys:
    """Keys and values of all steps so far, side by side, in place of a cache; gradients flow through them.

    Row t of step k is the k-th step of the rollout that starts at t, so that step k needs of earlier ones no more rows
    than it has itself, but for step 1, which stands for the target's own states up to t.
    """

    is_compileable = False

    def __init__(self) -> None:
        """Begin with none."""
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._step = self._rows = 0

    def begin(self, step: int, rows: int) -> None:
        """Let the next `update` be that of `step`, of so many `rows`."""
        self._step, self._rows = step, rows

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store `(B, H, T-k, D)` of this step; return those of step 1, then as many of each later step as it has."""
        self._pairs.append((keys, values))
        first, rest = self._pairs[0], self._pairs[1:]
        shown = [first, *((key[:, :, : self._rows], value[:, :, : self._rows]) for key, value in rest)]
        return torch.cat([key for key, _ in shown], dim=2), torch.cat([value for _, value in shown], dim=2)

    def get_seq_length(self, *_: Any) -> int:
        """Return how many keys there were before this step."""
        return sum(key.shape[2] for key, _ in self._pairs)


def step_arguments(positional: dict[str, Any], step: int, like: Tensor) -> dict[str, Any]:
    """Return what a layer is given beside the states `like` `(B, T-k, d)` of step k of every rollout.

    `positional` is what it got for all T tokens at once; row t of this step stands at token t+k-1. Raises
    UnsupportedModelError where a layer is given more for each pair of tokens than a mask.
    """
    rows = like.shape[1]
    found = {}
    for name, value in positional.items():
        if name == "attention_mask":
            found[name] = _mask(value, step, rows, like)
        elif name in _BY_TOKEN:
            found[name] = _shifted(value, step - 1, rows)
        elif isinstance(value, Tensor):
            raise UnsupportedModelError(
                f"layers that are given {name} cannot be rolled out over a whole text"
            )
        else:
            found[name] = value
    return found


def _shifted(value: Any, first: int, rows: int) -> Any:
    """Return `rows` tokens from `first` on, of `(T,)`, `(B, T)`, `(B, T, D)` or several of these."""
    if isinstance(value, tuple):
        return tuple(_shifted(part, first, rows) for part in value)
    if not isinstance(value, Tensor):
        return value
    return value.narrow(0 if value.dim() == 1 else 1, first, rows)


def _mask(mask: Tensor | None, step: int, rows: int, like: Tensor) -> Tensor:
    """Return the mask `(B|1, 1, rows, keys)` of step k: of step 1 what lies at or before t, of later steps row t."""
    first = rows + step - 1
    closed = torch.finfo(like.dtype).min
    seen = torch.ones((rows, first), dtype=torch.bool, device=like.device).tril()
    own = torch.eye(rows, dtype=torch.bool, device=like.device).repeat(1, step - 1)
    if mask is not None and mask.dtype is torch.bool:
        before = mask[:, :, step - 1 : first, :first] & seen
        return torch.cat([before, own.expand(*before.shape[:2], -1, -1)], dim=-1)
    added = torch.zeros((rows, first), dtype=like.dtype, device=like.device)
    before = (added if mask is None else mask[:, :, step - 1 : first, :first]).masked_fill(~seen, closed)
    before = before if before.dim() == 4 else before[None, None]
    after = torch.zeros(own.shape, dtype=like.dtype, device=like.device).masked_fill(~own, closed)
    return torch.cat([before, after.expand(*before.shape[:2], -1, -1)], dim=-1)
