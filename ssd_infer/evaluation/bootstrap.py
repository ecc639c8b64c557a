"""Paired ratio of totals with a bootstrap interval over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens and seconds of one prompt (or batch), summed over its repeats."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speedup and its 95 % interval; None when fewer than two prompts were measured."""

    value: float
    ci95: list[float] | None


def speed_ratio(ours: Sequence[Totals], theirs: Sequence[Totals], seed: int = 0) -> Ratio:
    """Return (Σ tokens / Σ seconds) of `ours` over that of `theirs`, prompts paired by index.

    The interval resamples prompts, both sides together (percentile bootstrap). Raises ValueError when the lengths
    differ: a silently shortened list would compare different prompts.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"paired measurements differ in number: {len(ours)} and {len(theirs)}")
    if not ours:
        raise ValueError("nothing was measured")
    table = torch.tensor(
        [[a.tokens, a.seconds, b.tokens, b.seconds] for a, b in zip(ours, theirs, strict=True)],
        dtype=torch.float64,
    )
    value = float(_ratio(table.sum(dim=0)))
    if len(ours) < 2:
        return Ratio(value, None)
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(ours), (RESAMPLES, len(ours)), generator=generator)
    ratios = _ratio(table[picks].sum(dim=1))
    bounds = torch.quantile(ratios, torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Ratio(value, [float(bound) for bound in bounds])


def _ratio(sums: torch.Tensor) -> torch.Tensor:
    """Turn sums `(…, 4)` of tokens, seconds, tokens, seconds into speed ratios `(…)`."""
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
