"""From logits to tokens: greedy, or temperature, top-k and top-p, the same for target and draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.values import flag, number, shown, whole
from ssd_infer.errors import ConfigError, Problem

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
    """Turn logits into processed distributions and tokens; one generator per decoding makes runs repeatable."""

    def __init__(self, params: SamplingParams, device: torch.device, seed: int | None = None) -> None:
        """Check `params` (ConfigError) and seed a generator on `device`, from torch's global state without a seed."""
        problems = params.problems()
        if problems:
            raise ConfigError(problems)
        self.params = params
        self.greedy = not params.do_sample
        self.generator = torch.Generator(device=device)
        chosen = int(torch.randint(2**62, ()).item()) if seed is None else seed
        self.generator.manual_seed(chosen)

    def probs(self, logits: Tensor) -> Tensor:
        """Return the distribution `(…, V)` in float32 that tokens are really drawn from."""
        params = self.params
        scores = logits.float()
        if params.temperature != 1.0:
            scores = scores / params.temperature
        if 0 < params.top_k < scores.shape[-1]:
            floor = scores.topk(params.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < floor, -torch.inf)
        probs = scores.softmax(dim=-1)
        return self._nucleus(probs) if params.top_p < 1.0 else probs

    def draw(self, probs: Tensor) -> Tensor:
        """Draw one token a distribution: `(…, V)` → `(…)`; entries need not be normalised."""
        flat = probs.reshape(-1, probs.shape[-1])
        return torch.multinomial(flat, 1, generator=self.generator).view(probs.shape[:-1])

    def uniform(self, like: Tensor) -> Tensor:
        """Return uniforms in [0, 1) shaped and typed as `like`."""
        return torch.rand(like.shape, generator=self.generator, device=like.device, dtype=like.dtype)

    def _nucleus(self, probs: Tensor) -> Tensor:
        """Keep the smallest set of tokens whose mass reaches top-p, the most likely one always, and renormalise."""
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= self.params.top_p, 0.0)
        kept = torch.zeros_like(probs).scatter_(-1, order, ordered)
        return kept / kept.sum(dim=-1, keepdim=True)
