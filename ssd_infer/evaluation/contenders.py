"""What competes in an evaluation: every contender turns a batch of prompts into tokens and a wall-clock time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

import ssd_infer
from ssd_infer import errors
from ssd_infer.engine.clock import synchronise
from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.latency import Arrivals, Listener, of_stats
from ssd_infer.strategies.study import Sampling

one_line = errors.one_line
Prompts = list[list[int]]
Kind = Literal["baseline", "again", "peer", "strategy"]
"""`again` is a baseline a second time: how far it seems to be from itself is the noise of the measurement."""


@dataclass(slots=True)
class Decoded:
    """One timed call: new tokens of each row, wall-clock seconds, and our engine's statistics where it ran."""

    tokens: list[list[int]]
    seconds: float
    stats: Stats | None = None
    arrivals: Arrivals | None = None
    """When its tokens came; None where nobody noted it."""


Decode = Callable[[list[Any], int, int], tuple[list[list[int]], Stats | None]]
"""(prompts or utterances, max_new_tokens, seed) → (new tokens of each row, statistics)."""


@dataclass(slots=True)
class Contender:
    """A named way to decode; `decode` is called with (prompts, max_new_tokens, seed)."""

    name: str
    kind: Kind
    decode: Decode
    draft: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    plain: bool = False
    """A strategy that decodes plainly, because it predicts no gain or drafted nothing."""
    idle: bool = False
    """It ran as a strategy and drafted nothing."""
    stands_for: str | None = None
    """The contender this one is the same decoding as, so that it is not run: it shares that one's records."""
    claimed: bool = True
    """Whether it promises unchanged output."""
    extra_bytes: int | None = None
    """Memory beyond plain decoding."""
    failure: str | None = None
    """Why it dropped out; None while it runs."""
    listener: Listener | None = None
    """Who hears the tokens of a decoding that is not ours."""
    make_ready: Callable[[list[Any]], object] | None = None
    """Called with the prompts before the clock starts: what `auto` goes by is measured then, once."""

    def run(self, prompts: list[Any], max_new_tokens: int, seed: int, device: torch.device) -> Decoded:
        """Decode and time one batch, devices synchronised at both ends."""
        if self.listener is not None:
            self.listener.forget()
        if self.make_ready is not None:
            self.make_ready(prompts)
        synchronise(device)
        begun, start = time.perf_counter_ns(), time.perf_counter()
        tokens, stats = self.decode(prompts, max_new_tokens, seed)
        synchronise(device)
        seconds = time.perf_counter() - start
        heard = of_stats(begun, stats) if self.listener is None else self.listener.heard(begun, tokens)
        return Decoded(tokens, seconds, stats, heard)


def ours(
    model: nn.Module, draft: str | None, params: dict[str, Any], sampling: Sampling, eos: Any = None
) -> Decode:
    """Return a decode function of our engine with a draft strategy, or plain for `draft=None`.

    Rules of the model's generation config are off, as they are for everyone it is compared with.
    """

    def decode(prompts: Prompts, max_new_tokens: int, seed: int) -> tuple[list[list[int]], Stats | None]:
        out = ssd_infer.generate(
            model,
            prompts,
            draft=draft,
            draft_params=params if draft else None,
            max_new_tokens=max_new_tokens,
            seed=seed,
            eos_token_id=eos,
            generation_rules="off",
            **sampling.arguments(),
        )
        return out.sequences, out.stats

    return decode
