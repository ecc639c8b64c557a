"""Search inside a decoding: propose skip sets, score each by one skipped pass over recent text (SWIFT, 2410.06916)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.tuning.sublayer_costs import SublayerCosts

RATIOS = (0.45, 0.3, 0.6, 0.8)
"""Shares of the skippable sublayers tried when the ratio is open; the first is the paper's."""
EXITS = (12, 8, 4)
"""Early exits after 1/12, 1/8 and 1/4 of the layers are tried first: they are cheap to score."""
_KAPPA = 2.5
"""Weight of uncertainty in the upper confidence bound, as in SWIFT."""


class Belief:
    """A Gaussian posterior over what skipping each sublayer does to the score: linear, closed form, microseconds."""

    def __init__(self, size: int, prior: float = 0.1, noise: float = 0.1) -> None:
        """Believe in effects of size `prior` a sublayer, seen through `noise`."""
        self._precision = torch.eye(size + 1, dtype=torch.float64) / prior**2
        self._precision[-1, -1] = 1e-4
        self._weighted = torch.zeros(size + 1, dtype=torch.float64)
        self._noise = noise

    def learn(self, bits: Sequence[bool], score: float) -> None:
        """Take in one scored candidate."""
        x = torch.tensor([*bits, True], dtype=torch.float64)
        self._precision += torch.outer(x, x) / self._noise**2
        self._weighted += x * score / self._noise**2

    def upper(self) -> Tensor:
        """Return the upper confidence bound `(size,)` of each sublayer's effect when skipped."""
        covariance = torch.linalg.inv(self._precision)
        mean = covariance @ self._weighted
        bound: Tensor = mean + _KAPPA * covariance.diagonal().clamp(min=0).sqrt()
        return bound[:-1]


@dataclass(slots=True)
class Proposer:
    """Candidates among the 2(L-2) sublayers between first and last layer.

    Seeds first: early exits, the sublayers that change the residual stream least by the full model's own states, and
    every other layer (the paper's start). After them uniform random sets, and every `bayes_every`-th time the set of
    highest upper confidence bound.
    """

    num_layers: int
    ratios: Sequence[float]
    bayes_every: int
    seed: int
    turn: int = 0
    seeds: list[SkipSet] = field(default_factory=list)
    belief: Belief = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing known."""
        self.belief = Belief(self.free)
        self._random = random.Random(self.seed)

    @property
    def free(self) -> int:
        """Sublayers that may be skipped."""
        return 2 * (self.num_layers - 2)

    def plant(self, states: Sequence[Tensor]) -> None:
        """Put the seeds up, given the full model's states before and after each sublayer."""
        odd = range(1, self.num_layers - 1, 2)
        change = [
            1.0 - float(cosine_similarity(before.float(), after.float(), dim=-1).mean())
            for before, after in pairwise(states[2:-2])
        ]
        order = sorted(range(self.free), key=change.__getitem__)
        quiet = [self._set(order[: self._count(ratio)]) for ratio in self.ratios]
        depths = sorted({max(1, round(self.num_layers / part)) for part in EXITS})
        rest = [range(depth, self.num_layers) for depth in depths]
        self.seeds = [*(SkipSet.of(r, r) for r in rest), quiet[0], SkipSet.of(odd, odd), *quiet[1:]]

    def next(self, near: SkipSet | None = None) -> SkipSet:
        """Return a candidate; `near` is the best set so far, whose size guides the size of new ones."""
        self.turn += 1
        if self.seeds:
            return self.seeds.pop(0)
        count = self._count(self._random.choice(self.ratios)) if near is None else len(near)
        count = max(1, min(count, self.free))
        if self.turn % self.bayes_every == 0:
            upper = self.belief.upper()
            return self._set(upper.topk(count).indices.tolist())
        return self._set(self._random.sample(range(self.free), count))

    def learn(self, skips: SkipSet, score: float) -> None:
        """Register a scored candidate."""
        self.belief.learn(skips.bits(self.num_layers)[2:-2], score)

    def _count(self, ratio: float) -> int:
        """M = ⌊2(L-2)·ratio⌋, at least one."""
        return max(1, int(self.free * ratio))

    def _set(self, chosen: Sequence[int]) -> SkipSet:
        bits = [False] * (2 * self.num_layers)
        for index in chosen:
            bits[index + 2] = True
        return SkipSet.from_bits(bits)


@dataclass(slots=True)
class RunningGain:
    """The speedup of drafting by its own recent rounds, older ones fading; starts from what was predicted."""

    accepted: float
    drafted: float
    weight: float = 4.0
    fade: float = 0.9

    def __post_init__(self) -> None:
        """Count the prediction as `weight` rounds."""
        self.accepted *= self.weight
        self.drafted *= self.weight

    def learn(self, accepted: float, drafted: float) -> None:
        """Take in one round's mean accepted and drafted tokens a row."""
        self.accepted = self.fade * self.accepted + accepted
        self.drafted = self.fade * self.drafted + drafted
        self.weight = self.fade * self.weight + 1.0

    @property
    def per_round(self) -> tuple[float, float]:
        """Accepted and drafted tokens of a round."""
        return self.accepted / self.weight, self.drafted / self.weight

    def speedup(self, costs: SublayerCosts, skips: SkipSet, more: float = 0.0) -> float:
        """Return (1 + accepted + `more`) / (drafted · c + v) of such rounds with `skips`."""
        accepted, drafted = self.per_round
        return costs.skipping(skips).speedup(1 + accepted + more, drafted)


@dataclass(slots=True)
class Reach:
    """How far to draft: at most `most`, little beyond what recent rounds accepted, twice as far after a full round."""

    most: int
    expected: float
    """Mean accepted tokens of a round, recent ones counting most; starts from what was predicted."""
    fade: float = 0.7
    length: int = 0

    def __post_init__(self) -> None:
        """Begin with what the prediction allows."""
        self._set_length()

    def learn(self, accepted: float, drafted: float) -> None:
        """Take in one round's mean accepted and drafted tokens a row."""
        self.expected = self.fade * self.expected + (1 - self.fade) * accepted
        self._set_length()
        if accepted >= drafted:
            self.length = min(self.most, max(self.length, math.ceil(2 * drafted)))

    def _set_length(self) -> None:
        self.length = max(1, min(self.most, math.ceil(2 * self.expected) + 1))


@dataclass(slots=True)
class AcceptanceDrop:
    """Notice that acceptance fell: a fast running mean far below a slow one."""

    fall: float = 0.25
    patience: int = 16
    fast: float | None = None
    slow: float | None = None
    rounds: int = 0

    def learn(self, accepted: int, drafted: int) -> bool:
        """Take in one round; return True when acceptance has fallen, then start over from the new level."""
        if not drafted:
            return False
        share = accepted / drafted
        if self.fast is None or self.slow is None:
            self.fast = self.slow = share
        self.fast, self.slow = 0.9 * self.fast + 0.1 * share, 0.98 * self.slow + 0.02 * share
        self.rounds += 1
        if self.rounds < self.patience or self.fast >= self.slow - self.fall:
            return False
        self.slow, self.rounds = self.fast, 0
        return True
