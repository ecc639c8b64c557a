"""Positions in time and in tokens."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def within(lengths: Tensor, size: int) -> Tensor:
    """Return bool `(B, size)`: the places of each row before its length, `lengths` `(B,)`."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Return the sinusoidal positions `(length, width)` of arXiv 1706.03762, section 3.5, in float32."""
    rows = 1 << max(6, (length - 1).bit_length())
    return _table(rows, width, device)[:length]


@lru_cache(maxsize=16)
@torch.inference_mode(mode=False)
def _table(rows: int, width: int, device: torch.device) -> Tensor:
    """Return an ordinary tensor whatever mode it is first asked for in: training may be next to ask."""
    return _sinusoids(torch.arange(rows, device=device, dtype=torch.float32), width)


def relative_sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Return the sinusoids `(2·length − 1, width)` of the relative positions length − 1 down to 1 − length."""
    rows = 1 << max(6, (length - 1).bit_length())
    return _relative_table(rows, width, device)[rows - length : rows + length - 1]


@lru_cache(maxsize=16)
@torch.inference_mode(mode=False)
def _relative_table(rows: int, width: int, device: torch.device) -> Tensor:
    return _sinusoids(torch.arange(rows - 1, -rows, -1, device=device, dtype=torch.float32), width)


def _sinusoids(steps: Tensor, width: int) -> Tensor:
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=steps.device, dtype=torch.float32) / width)
    angles = steps[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def positions_of_tokens(logits: Tensor, blank: int) -> Tensor:
    """Return int64 `(B, T)`: position of the token the greedy CTC path of `logits` `(B, T, V)` reads at each frame.

    A token's first frame and what repeats it carry the token's index, counted from 0; a blank carries the index of the
    token still to come. Depends on earlier frames only, so padding after an utterance changes nothing in it.
    """
    path = logits.argmax(dim=-1)
    before = torch.cat([torch.full_like(path[:, :1], blank), path[:, :-1]], dim=1)
    begins = (path != blank) & (path != before)
    return begins.cumsum(dim=1) - (path != blank).long()
