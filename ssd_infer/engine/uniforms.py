"""Uniform numbers as a pure function of seed, row, round, purpose, call and place: no row sees what others consume.

A generator shared by a batch hands a row other numbers when a neighbour ends or drafts more; one generator a row
costs a call a row. Here the key of a number is hashed, for all rows at once, by SplitMix64's finaliser (Steele et al.,
OOPSLA 2014). A key is used once: a round begins at a number of emitted tokens that its row never has again, and within
a round every call for a purpose has a number of its own. What a draft drew, what accepted it and what followed a
rejection are therefore independent, although none depends on how many numbers any other row, or purpose, took.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_Keys = NDArray[np.uint64]
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_1, _30, _27, _31 = (np.uint64(n) for n in (1, 30, 27, 31))
_MOST_STEPS = 1 << 20


class Purpose(IntEnum):
    """What a number decides."""

    DRAFT = 0
    ACCEPT = 1
    FOLLOW = 2
    """The token after the accepted drafts: after a rejection, as a bonus, or without drafts."""


class Uniforms:
    """The numbers of all rows of one decoding."""

    def __init__(self, seed: int) -> None:
        """Derive all numbers from `seed`, any integer; rows count from 0 until a round says which they are."""
        self._seed = _hashed(np.array([seed % 2**64], dtype=np.uint64), _one(0))
        self._round: _Keys | None = None
        self._calls = [0, 0, 0]

    def begin(
        self, rows: Sequence[int], positions: Sequence[int], steps: Sequence[int] | None = None
    ) -> None:
        """Begin a round of `rows` (indices in the input), each at a position it has not begun a round at.

        `steps`, below 2²⁰, tell apart rounds of one row at the same position, for rows that run out of step.
        """
        places = np.array(positions, dtype=np.uint64) * np.uint64(_MOST_STEPS)
        if steps is not None:
            places += np.array(steps, dtype=np.uint64)
        self._round = _hashed(_hashed(self._seed, np.array(rows, dtype=np.uint64)), places)
        self._calls = [0, 0, 0]

    def take(self, purpose: Purpose, shape: Sequence[int], bits: int = 52) -> NDArray[np.float64]:
        """Return numbers in [0, 1) of `shape`, rows first, in steps of 2^-bits.

        Raises ValueError where `shape` has not the rows of the round.
        """
        keys = self._round
        if keys is None:
            keys = _hashed(_hashed(self._seed, _one(2**63)), np.arange(shape[0], dtype=np.uint64))
        if len(keys) != shape[0]:
            raise ValueError(f"this round has {len(keys)} rows, but numbers for {shape[0]} were asked for")
        call, self._calls[purpose] = self._calls[purpose], self._calls[purpose] + 1
        keys = _hashed(keys, _one(call * len(Purpose) + purpose))
        count = int(np.prod(shape[1:], dtype=np.int64))
        places = np.arange(count, dtype=np.uint64)
        found = _hashed(keys[:, None], places) >> np.uint64(64 - bits)
        numbers: NDArray[np.float64] = found.astype(np.float64) * 2.0**-bits
        return numbers.reshape(tuple(shape))


def _one(value: int) -> _Keys:
    """Return an array of one: scalars of numpy warn where they wrap."""
    return np.array([value], dtype=np.uint64)


def _hashed(keys: _Keys, part: _Keys) -> _Keys:
    """Return new keys from `keys` and the next part of each; uint64 arithmetic wraps."""
    value: _Keys = keys + (part + _1) * _STEP
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    mixed: _Keys = value ^ (value >> _31)
    return mixed
