"""Measured seconds of the parts a decoding round is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ssd_infer.engine.acceptance import accept
from ssd_infer.engine.clock import synchronise
from ssd_infer.engine.laws import Law
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Session, open_session
from ssd_infer.engine.target import Target

WIDTHS = (1, 2, 3, 5, 9, 17)
SHORT = 256
"""Contexts up to so many tokens count as one: reading their keys costs little beside reading the weights."""
BLOCKS = 3
"""Stretches of repeats a measurement is cut into; the quietest one counts."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a pass by how much it does: exact at the measured points, straight lines between them."""

    at: tuple[float, ...]
    seconds: tuple[float, ...]
    steep: bool = False
    """Beyond the last point the last line goes on, if it rises; otherwise seconds stay what they were."""

    def __call__(self, value: float) -> float:
        """Return the seconds at `value`."""
        beyond = value - self.at[-1]
        if not self.steep or beyond <= 0 or len(self.at) == 1:
            return float(np.interp(value, self.at, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.at[-1] - self.at[-2])
        return self.seconds[-1] + max(0.0, slope) * beyond


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What rounds of one draft cost, in seconds, and what they gain over plain steps; the arithmetic of every draft."""

    plain: float
    """One plain decoding step."""
    draft: float
    """One drafted token."""
    verify: Curve
    """One verify pass, by its tokens: the drafts and one more."""
    once: float = 0.0
    """What a round costs beside, however much it drafts."""

    @property
    def c(self) -> float:
        """Return the cost of one drafted token in plain steps."""
        return self.draft / self.plain

    def v(self, drafted: float) -> float:
        """Return the cost of verifying `drafted` tokens in plain steps."""
        return self.verify(drafted + 1) / self.plain

    def seconds(self, drafted: float) -> float:
        """Return the seconds of one round that drafts `drafted` tokens."""
        return self.once + drafted * self.draft + self.verify(drafted + 1)

    def speedup(self, emitted: float, drafted: float) -> float:
        """Return the speedup of rounds that emit and draft so many tokens each, in the mean: τ / (γc + v)."""
        return emitted * self.plain / self.seconds(drafted)

    def cheaper(self, saved: float) -> RoundCosts:
        """Return the costs of drafts that take `saved` seconds less a token; no draft costs nothing."""
        return replace(self, draft=max(0.05 * self.draft, self.draft - saved))

    def scaled(self, factor: float) -> RoundCosts:
        """Return the costs of rounds that take `factor` times as long; plain steps stay."""
        verify = replace(self.verify, seconds=tuple(factor * spent for spent in self.verify.seconds))
        return RoundCosts(self.plain, factor * self.draft, verify, factor * self.once)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at one batch size and context length; `layer[i]` and `step[i]` belong to `widths[i]` tokens a pass."""

    widths: tuple[int, ...]
    layer: tuple[float, ...]
    """One decoder layer."""
    step: tuple[float, ...]
    """Everything of a pass but its layers: embedding, masks, norm, head, choosing tokens."""
    num_layers: int

    def layer_at(self, width: float) -> float:
        """Return seconds of one layer on `width` tokens, interpolated."""
        return float(np.interp(width, self.widths, self.layer))

    def step_at(self, width: float) -> float:
        """Return the fixed seconds of a pass over `width` tokens, interpolated."""
        return float(np.interp(width, self.widths, self.step))

    @property
    def plain(self) -> float:
        """Seconds of one plain decoding step."""
        return self.step_at(1) + self.num_layers * self.layer_at(1)

    def exit(self, exit_layer: int, draft: float | None = None) -> RoundCosts:
        """Return the costs of drafts whose first `exit_layer` layers are the model's own and not run again to verify.

        `draft`: seconds of one drafted token; None: of these layers and the head.
        """
        one, rest = exit_layer * self.layer_at(1), self.num_layers - exit_layer
        verify = tuple(step + one + rest * layer for step, layer in zip(self.step, self.layer, strict=True))
        drafted = self.step_at(1) + one if draft is None else draft
        return RoundCosts(self.plain, drafted, Curve(self.widths, verify))


@torch.inference_mode()
def measure_costs(
    target: Target,
    context: int = 128,
    do_sample: bool = False,
    repeats: int = 9,
    batch: int = 1,
    widths: tuple[int, ...] = WIDTHS,
) -> Costs:
    """Time full and one-layer passes of several `widths`, interleaved, and split them into layer and fixed cost.

    A shared machine drifts, so every repeat visits every width and `quiet_seconds` sums the repeats up; more tokens
    never cost less, so what noise turned round is levelled by `non_decreasing`.
    """
    session = session_at(target, context, batch, max(widths), do_sample)
    quiet = _quiet_passes(session, (1, target.num_layers), widths, repeats)
    span = max(1, target.num_layers - 1)
    layer = [max(1e-9, (quiet[target.num_layers, width] - quiet[1, width]) / span) for width in widths]
    layer = non_decreasing(layer)
    step = [max(1e-9, quiet[1, width] - one) for width, one in zip(widths, layer, strict=True)]
    return Costs(widths, tuple(layer), tuple(non_decreasing(step)), target.num_layers)


@torch.inference_mode()
def measure_verify(
    target: Target,
    context: int,
    do_sample: bool,
    batch: int,
    widths: tuple[int, ...],
    repeats: int = 5,
) -> Curve:
    """Time full passes alone, of several `widths`: what verification costs, at half the time of `measure_costs`."""
    session = session_at(target, context, batch, max(widths), do_sample)
    quiet = _quiet_passes(session, (target.num_layers,), widths, repeats)
    seconds = non_decreasing([quiet[target.num_layers, width] for width in widths])
    return Curve(widths, tuple(seconds), steep=True)


def _quiet_passes(
    session: Session, depths: Sequence[int], widths: Sequence[int], repeats: int
) -> dict[tuple[int, int], float]:
    """Return quiet seconds of passes by depth and width, after one of each that does not count."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for repeat in range(repeats + 1):
        for width in widths:
            for depth in depths:
                spent = timed(partial(_one_pass, session, depth, width), session.target.device)
                if repeat:
                    seconds.setdefault((depth, width), []).append(spent)
    return {key: quiet_seconds(values) for key, values in seconds.items()}


def session_at(target: Target, context: int, batch: int, widest: int, do_sample: bool = False) -> Session:
    """Return a session of `batch` rows that stand at `context` tokens nobody ran, with room for `widest` more."""
    sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
    session = open_session(target, [[0] * context] * batch, 1, widest, sampler)
    session.pretend([context] * batch)
    return session


def batch_class(batch: int) -> int:
    """Return the power of two, 64 at most, at which costs of `batch` rows are measured: they change slowly with it."""
    return min(64, 1 << (batch - 1).bit_length())


def context_class(context: int) -> int:
    """Return the power of two that stands for costs measured at `context` tokens: they change slowly with it."""
    return max(SHORT, 1 << (context - 1).bit_length())


def quiet_seconds(samples: Sequence[float], blocks: int = BLOCKS) -> float:
    """Return the least median of `blocks` consecutive stretches of samples.

    A median ignores single spikes, and the least of several ignores load that lasts for a part of the measurement.
    """
    parts = np.array_split(np.asarray(samples, dtype=np.float64), min(blocks, len(samples)))
    return min(float(np.median(part)) for part in parts)


def non_decreasing(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence closest to `values` in squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def _one_pass(session: Session, depth: int, width: int) -> None:
    """Embed `width` tokens, run `depth` layers, and decide which of the tokens after the first are accepted.

    Their law is the same everywhere: deciding takes as long by any.
    """
    target = session.target
    session.begin_round()
    ids = torch.zeros((len(session.lengths), width), dtype=torch.long, device=target.device)
    window = session.window(width)
    hidden = target.embed_at(ids, window, session.cache)
    logits = target.logits(target.run(hidden, window, session.cache, 0, depth))
    law = logits.new_full((1, 1, 1), 1 / logits.shape[-1], dtype=torch.float32)
    accept(logits, ids[:, 1:], None, Law(law.expand_as(logits[:, 1:])), session.sampler)


def timed(call: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of one call, the device's queue included."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start
