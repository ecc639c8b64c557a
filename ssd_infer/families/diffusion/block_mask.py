"""Attention of noised copies of a sequence that lie beside the clean one, for training and likelihood.

Source: BD3-LM, arXiv 2503.09573, section 3: with [x_t ‖ x_0] in one pass every block is denoised given the clean blocks
before it. Here any number of noised copies may stand in front, which do not see one another.
"""

from __future__ import annotations

import torch
from torch import Tensor


def noised_beside_clean(
    length: int, block_size: int, copies: int = 1, device: torch.device | str | None = None
) -> Tensor:
    """Return bool `(Q, Q)` with Q = (copies + 1)·length: True where a query (row) may look at a key (column).

    A noised position sees its own block of its own copy and the clean blocks before it; a clean position sees the clean
    blocks up to its own. `block_size` must divide `length`.
    """
    total = (copies + 1) * length
    place = torch.arange(total, device=device)
    block, copy = place % length // block_size, place // length
    clean = copy == copies
    same_copy = copy[:, None] == copy[None, :]
    own = same_copy & (block[:, None] == block[None, :])
    earlier = clean[None, :] & (block[None, :] < block[:, None])
    return own | earlier


def positions(length: int, copies: int = 1, device: torch.device | str | None = None) -> Tensor:
    """Return `(1, (copies + 1)·length)` position ids, the same for every copy."""
    return torch.arange(length, device=device).repeat(copies + 1)[None]
