"""Measured seconds of attention and MLP apart, so that the cost of any skip set is a sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from ssd_infer.engine.sublayers import SkipSet, View, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.tuning.costs import (
    SHORT,
    Costs,
    RoundCosts,
    batch_class,
    context_class,
    measure_costs,
    quiet_seconds,
    session_at,
    timed,
)
from ssd_infer.tuning.memo import Memo

MAX_WEIGHT = 5
"""Largest integer latency ratio between the two kinds of sublayer (KnapSpec caps it there)."""


@dataclass(frozen=True, slots=True)
class SublayerCosts:
    """Seconds at one batch size and context: whole passes, and a layer that kept only one of its sublayers."""

    whole: Costs
    attention: float
    """One layer whose MLP is skipped, one token a row."""
    mlp: float
    """One layer whose attention is skipped, one token a row."""
    saved: float = 0.0
    """What a draft's own head takes less than the model's, a token."""

    def cheaper(self, saved: float) -> SublayerCosts:
        """Return the costs of drafts whose head takes `saved` seconds less a token than the model's."""
        return replace(self, saved=saved)

    def skipping(self, skips: SkipSet) -> RoundCosts:
        """Return the costs of drafts without `skips`, verified from the first skipped layer on."""
        return self.whole.exit(skips.first(self.whole.num_layers), self.draft(skips)).cheaper(self.saved)

    def draft(self, skips: SkipSet) -> float:
        """Return the seconds of one drafted token, the model's own head included."""
        layers = range(self.whole.num_layers)
        both = sum(1 for i in layers if i not in skips.attention and i not in skips.mlp)
        attention = sum(1 for i in layers if i in skips.mlp and i not in skips.attention)
        mlp = sum(1 for i in layers if i in skips.attention and i not in skips.mlp)
        kept = both * self.whole.layer_at(1) + attention * self.attention + mlp * self.mlp
        return self.whole.step_at(1) + kept

    @property
    def weights(self) -> tuple[int, int]:
        """Attention and MLP seconds as small integers; the cheaper one counts 1."""
        least = min(self.attention, self.mlp)
        attention, mlp = (
            min(MAX_WEIGHT, max(1, round(seconds / least))) for seconds in (self.attention, self.mlp)
        )
        return attention, mlp


@torch.inference_mode()
def measure_sublayers(
    target: Target, context: int = 128, do_sample: bool = False, batch: int = 1, repeats: int = 9
) -> SublayerCosts:
    """Time one-token passes that keep nothing, attention only and MLPs only, interleaved."""
    whole = measure_costs(target, context, do_sample, repeats, batch)
    session = session_at(target, context, batch, 1)
    ids = torch.zeros((batch, 1), dtype=torch.long, device=target.device)
    every = range(target.num_layers)
    views: list[View] = [
        [None] * target.num_layers,
        skip_view(target, SkipSet.of((), every)),
        skip_view(target, SkipSet.of(every, ())),
    ]

    def one_pass(view: View) -> None:
        window = session.window(1)
        target.run(target.embed_at(ids, window, session.cache), window, session.cache, layers=view)

    seconds: list[list[float]] = [[] for _ in views]
    for repeat in range(repeats + 1):
        for spent, view in zip(seconds, views, strict=True):
            took = timed(partial(one_pass, view), target.device)
            if repeat:
                spent.append(took)
    none, attention, mlp = (quiet_seconds(spent) for spent in seconds)
    layers = target.num_layers
    return SublayerCosts(whole, max(1e-9, (attention - none) / layers), max(1e-9, (mlp - none) / layers))


_known: Memo[SublayerCosts] = Memo()


def remember_costs(
    target: Target, costs: SublayerCosts, do_sample: bool = False, batch: int = 1, context: int = SHORT
) -> None:
    """Let searches and drafters of this model use `costs` from now on, as long as it is and runs as it does now."""
    _known.put(target.model, (context_class(context), do_sample, batch), costs)


def cached_sublayer_costs(
    target: Target, context: int = 128, do_sample: bool = False, batch: int = 1
) -> SublayerCosts:
    """Return this model's costs, measuring them the first time they are asked for at this batch size and context.

    Both are rounded up to a power of two, batches to 64 at most: costs change slowly with them.
    """
    batch = batch_class(batch)
    return _known.cached(
        target.model,
        (context_class(context), do_sample, batch),
        lambda: measure_sublayers(target, context, do_sample, batch),
    )
