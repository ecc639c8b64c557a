"""Paired ratio of totals with a bootstrap interval over prompts and runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RESAMPLES = 4000
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571)
"""The 97.5 % point of Student's t with 1, 2, … degrees of freedom; beyond, a series serves."""
TOO_WIDE = 0.1
"""A claim whose interval reaches further than this share of its value to either side was measured too briefly."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens and seconds of one prompt (or batch) in one stretch of a measurement."""

    tokens: int
    seconds: float
    prompt: int | None = None
    """What is resampled together; None: every entry is a prompt of its own."""
    block: int = 0
    """The stretch of the measurement it was timed in: an order of its own, warmed up anew."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speedup and its 95 % interval; None when fewer than two prompts were measured."""

    value: float
    ci95: list[float] | None

    @property
    def too_short(self) -> bool:
        """Tell whether the interval is wider than ±10 %, or unknown."""
        return self.ci95 is None or self.reach > TOO_WIDE

    @property
    def reach(self) -> float:
        """Distance of the further end from the value, as a share of it; infinite without an interval."""
        if self.ci95 is None or self.value <= 0:
            return float("inf")
        return max(self.value - self.ci95[0], self.ci95[1] - self.value) / self.value

    def at_least(self, noise: float) -> Ratio:
        """Return this ratio with an interval that reaches at least the factor 1 + `noise` to either side."""
        if self.ci95 is None:
            return self
        low, high = self.value / (1 + noise), self.value * (1 + noise)
        return Ratio(self.value, [min(self.ci95[0], low), max(self.ci95[1], high)])


def speed_ratio(ours: Sequence[Totals], theirs: Sequence[Totals], seed: int = 0) -> Ratio:
    """Return (Σ tokens / Σ seconds) of `ours` over that of `theirs`, entries paired by index.

    The interval resamples prompts and blocks, both sides together (percentiles; each prompt and each block is drawn
    with replacement and an entry counts as often as both were drawn, arXiv 0712.1111, which errs towards wide), widened
    as Student's t demands of few prompts: two that agree by chance prove nothing. Raises ValueError when the lengths
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
    prompts = [index if part.prompt is None else part.prompt for index, part in enumerate(ours)]
    if len(set(prompts)) < 2:
        return Ratio(value, None)
    generator = torch.Generator().manual_seed(seed)
    weights = _drawn(prompts, generator) * _drawn([part.block for part in ours], generator)
    ratios = _ratio(weights[weights.sum(dim=1) > 0] @ table)
    bounds = torch.quantile(ratios, torch.tensor([0.025, 0.975], dtype=torch.float64))
    widening = small_sample_factor(len(set(prompts)))
    return Ratio(value, [value * (float(bound) / value) ** widening for bound in bounds] if value else None)


def small_sample_factor(count: int) -> float:
    """Return by how much wider an interval over `count` prompts must be than a bootstrap of them says.

    A resample of n values scatters by √((n-1)/n) too little, and its 2.5 % tail is the normal one, not Student's.
    """
    freedom = count - 1
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.37 / freedom + 2.82 / freedom**2
    return student / 1.96 * math.sqrt(count / freedom)


def _drawn(labels: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return how often each entry's label was drawn, `(RESAMPLES, entries)`; one label alone is drawn once."""
    places = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    picks = torch.randint(len(places), (RESAMPLES, len(places)), generator=generator)
    counts = torch.zeros(RESAMPLES, len(places), dtype=torch.float64)
    counts.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))
    return counts[:, [places[label] for label in labels]]


def _ratio(sums: Tensor) -> Tensor:
    """Turn sums `(…, 4)` of tokens, seconds, tokens, seconds into speed ratios `(…)`."""
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
