"""From logits to tokens: greedy, or temperature, top-k and top-p, the same for target and draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.rules import Warpers, choiceless
from ssd_infer.engine.uniforms import Purpose, Uniforms
from ssd_infer.engine.values import flag, number, shown, whole
from ssd_infer.errors import ConfigError, NoTokenError, Problem

COLDEST = 1e-4
"""Lowest temperature that does not overflow; below it sampling is greedy decoding anyway."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen; `top_k=0` and `top_p=1.0` mean off."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def read(
        cls, do_sample: Any, temperature: Any, top_k: Any, top_p: Any, problems: list[Problem]
    ) -> SamplingParams:
        """Build parameters from what callers pass, None meaning off; what is wrong is added to `problems`."""
        wanted = False if do_sample is None else flag(do_sample)
        heat = 1.0 if temperature is None else number(temperature)
        most = 0 if top_k is None else whole(top_k)
        mass = 1.0 if top_p is None else number(top_p)
        if wanted is None:
            rule, remedy = "must be true or false", "use do_sample=True to sample"
            problems.append(Problem("do_sample", rule, shown(do_sample), remedy))
        if heat is None:
            rule, remedy = "must be a finite number, or None", "None and 1.0 leave the scores as they are"
            problems.append(Problem("temperature", rule, shown(temperature), remedy))
        if most is None:
            rule = "must be an integer, or None"
            problems.append(Problem("top_k", rule, shown(top_k), "None and 0 turn it off"))
        if mass is None:
            rule = "must be a number in (0, 1], or None"
            problems.append(Problem("top_p", rule, shown(top_p), "None and 1.0 turn it off"))
        found = cls(
            bool(wanted),
            1.0 if heat is None else heat,
            most or 0,
            1.0 if mass is None else mass,
        )
        problems += found.problems()
        return found

    def problems(self) -> list[Problem]:
        """Return the violated rules."""
        found = []
        lowest = COLDEST if self.do_sample else 0.0
        if not lowest <= self.temperature < float("inf"):
            rule = f"must be finite and at least {COLDEST:g} when sampling"
            remedy = "use do_sample=False for greedy"
            found.append(Problem("temperature", rule, self.temperature, remedy))
        if self.top_k < 0:
            found.append(Problem("top_k", "must be >= 0", self.top_k, "0 turns it off"))
        if not 0 < self.top_p <= 1:
            found.append(Problem("top_p", "must be in (0, 1]", self.top_p, "1.0 turns it off"))
        return found


class Sampler:
    """Turn logits into processed distributions and tokens.

    Every row draws numbers of its own (`Uniforms`), made from the seed and the row's place in the input: the first row
    of a batch draws what the same prompt alone draws, and no row's tokens depend on the others.
    """

    def __init__(
        self,
        params: SamplingParams,
        device: torch.device,
        seed: int | None = None,
        warpers: Warpers | None = None,
    ) -> None:
        """Check `params` (ConfigError); without a seed one is taken from torch's global state.

        `warpers` narrow the distribution further; None where there are none.
        """
        problems = params.problems()
        if problems:
            raise ConfigError(problems)
        self.params = params
        self.greedy = not params.do_sample
        self.warpers = warpers
        self.device = device
        self.uniforms = Uniforms(int(torch.randint(2**62, ()).item()) if seed is None else seed)
        self._bits, self._dtype = (23, torch.float32) if device.type == "mps" else (52, torch.float64)

    def begin(
        self, rows: Sequence[int], positions: Sequence[int], steps: Sequence[int] | None = None
    ) -> None:
        """Begin a round of these rows, as `Uniforms.begin` has it; greedy decoding needs no numbers."""
        if not self.greedy:
            self.uniforms.begin(rows, positions, steps)

    def probs(self, logits: Tensor) -> Tensor:
        """Return the distribution `(…, V)` in float32 that tokens are really drawn from; NaN where there is none."""
        if self.warpers is None:
            return self._probs(logits.float())
        nothing = choiceless(logits)
        probs = self._probs(logits.float().masked_fill(nothing, 0.0), self.warpers)
        return probs.masked_fill(nothing, torch.nan)

    def _probs(self, scores: Tensor, warpers: Warpers | None = None) -> Tensor:
        """Return the distribution `(…, V)` that `scores` lead to, in the order of transformers' warpers."""
        params = self.params
        if params.temperature != 1.0:
            scores = scores / params.temperature
        if warpers is not None:
            scores = warpers.warp(warpers.before, scores)
        if 0 < params.top_k < scores.shape[-1]:
            floor = scores.topk(params.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < floor, -torch.inf)
        probs = scores.softmax(dim=-1)
        probs = self._nucleus(probs) if params.top_p < 1.0 else probs
        return probs if warpers is None else warpers.warp(warpers.after, probs.log()).softmax(dim=-1)

    def choose(self, scored: Scored) -> tuple[Tensor, Law | None]:
        """Choose a token `(…)` by each of the scores `(…, K)`; when sampling, with the law it was drawn from."""
        if self.greedy:
            return scored.tokens(scored.logits.argmax(dim=-1)), None
        q = self.probs(scored.logits)
        return scored.tokens(self.draw(q)), Law(q, scored.ids)

    def draw(self, probs: Tensor, purpose: Purpose = Purpose.DRAFT) -> Tensor:
        """Draw one token a distribution: `(B, …, V)` → `(B, …)`; entries need not be normalised.

        Raises NoTokenError where a distribution holds nothing, or what is no number.
        """
        sums = probs.to(self._dtype).cumsum(dim=-1)
        total = sums[..., -1:]
        if not bool(((total > 0) & (total < torch.inf)).all()):
            raise NoTokenError(
                "a distribution to draw from is empty or holds NaN: the model's scores are no numbers, or the rules "
                "of this generation leave no token to choose"
            )
        numbers = self._take(purpose, probs.shape[:-1]).unsqueeze(-1)
        # A number is below 1 by more than rounding, so the first sum above it belongs to a token that has a chance.
        return torch.searchsorted(sums, numbers * total, right=True).squeeze(-1)

    def uniform(self, like: Tensor) -> Tensor:
        """Return the numbers in [0, 1) that decide whether drafts `(B, γ)` pass, shaped as `like`."""
        return self._take(Purpose.ACCEPT, like.shape)

    def _take(self, purpose: Purpose, shape: Sequence[int]) -> Tensor:
        found = torch.from_numpy(self.uniforms.take(purpose, shape, self._bits))
        return found.to(device=self.device, dtype=self._dtype)

    def _nucleus(self, probs: Tensor) -> Tensor:
        """Keep the smallest set of tokens whose mass reaches top-p, the most likely one always, and renormalise."""
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        beyond = before >= self.params.top_p
        beyond[..., :1] = False  # also where top-p is too small for float32 to tell from 0
        ordered = ordered.masked_fill(beyond, 0.0)
        kept = torch.zeros_like(probs).scatter_(-1, order, ordered)
        return kept / kept.sum(dim=-1, keepdim=True)
