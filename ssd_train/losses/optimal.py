"""What a decoder should say after a wrong prefix: tokens that keep the edit distance as small as it can still be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def edit_table(prefix: Sequence[int], label: Sequence[int]) -> NDArray[np.int64]:
    """Return D `(len(prefix)+1, len(label)+1)`: edit distances between all starts of both."""
    wanted = np.asarray(label, dtype=np.int64)
    columns = np.arange(len(wanted) + 1)
    table = np.empty((len(prefix) + 1, len(columns)), dtype=np.int64)
    table[0] = columns
    for row, token in enumerate(prefix, 1):
        best = np.empty(len(columns), dtype=np.int64)
        best[0] = row
        best[1:] = np.minimum(table[row - 1, :-1] + (wanted != token), table[row - 1, 1:] + 1)
        # Deletions run along the row: D[m] = min over k ≤ m of best[k] + (m − k).
        table[row] = np.minimum.accumulate(best - columns) + columns
    return table


def optimal_targets(
    prefix: Sequence[int], label: Sequence[int], eos: int, rng: np.random.Generator
) -> list[int]:
    """Return a target for each of the `len(prefix) + 1` positions, drawn evenly from the optimal continuations.

    After `prefix[:j]` every `label[m]` is optimal for which D[j, m] is the row's minimum, and EOS where m is the
    label's end (optimal completion distillation, arXiv 1810.01398, section 3). A right prefix gives the label itself.
    """
    table = edit_table(prefix, label)
    extended = [*label, eos]
    return [extended[int(rng.choice(np.flatnonzero(row == row.min())))] for row in table]
