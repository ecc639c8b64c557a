"""Where the randomness of diffusion training comes from: times spread evenly over a step, and numbers of each sample.

Everything is a function of (seed, step, sample), whatever rank or micro-batch a sample falls into: splitting a step
into micro-batches or processes changes nothing, and a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SAMPLES = 1 << 24
_STEPS = 1 << 28


@dataclass(frozen=True, slots=True)
class Place:
    """Where a micro-batch lies in the optimizer step it belongs to."""

    seed: int
    step: int
    first: int
    """Number of its first sample among those of all ranks."""
    total: int
    """Samples of the step on all ranks."""


def uniform(place: Place, rows: int, columns: int) -> Tensor:
    """Return `(rows, columns)` numbers in [0, 1) in double precision, each row a function of its sample alone."""
    drawn = [
        torch.rand(columns, generator=_generator(place, place.first + row), dtype=torch.float64)
        for row in range(rows)
    ]
    return torch.stack(drawn)


def stratified(place: Place, numbers: Tensor) -> Tensor:
    """Return `(rows, K)` times in [0, 1) of which each of total·K equal strata holds one, given uniform `numbers`.

    The strata are numbered so that a row's K times lie far apart: t = (u + k·total + sample) / (K·total), with k turned
    by the sample so that no column prefers early times (MDLM, arXiv 2406.07524, appendix C, over all ranks). Samples
    beyond the total begin again at the first stratum.
    """
    rows, count = numbers.shape
    sample = torch.arange(place.first, place.first + rows)[:, None] % place.total
    column = (torch.arange(count)[None] + sample + place.step) % count
    return (numbers + column * place.total + sample) / (count * place.total)


def _generator(place: Place, sample: int) -> torch.Generator:
    mixed = (place.seed * _STEPS + place.step) * _SAMPLES + sample
    return torch.Generator().manual_seed(mixed % (1 << 63))
