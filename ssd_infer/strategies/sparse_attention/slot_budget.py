"""How many cache slots a draft step may read."""

from __future__ import annotations

import math
from collections.abc import Sequence


def budget(length: int, ratio: float, min_budget: int) -> int:
    """Return min(max(min_budget, ⌈ratio·length⌉), length), the slots read of a row of `length` (SparseSpec)."""
    return min(max(min_budget, math.ceil(ratio * length)), length)


def batch_width(lengths: Sequence[int], forced: Sequence[int], ratio: float, min_budget: int) -> int:
    """Return the slots every row of a batch reads: the largest budget, and at least what is forced anywhere.

    Attention over a batch is as wide as its widest row, so shorter rows get the difference for nothing.
    """
    widest = max(budget(length, ratio, min_budget) for length in lengths)
    return max(widest, *forced)
