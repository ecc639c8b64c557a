"""Measured seconds of the parts a decoding round is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Session, open_session
from ssd_infer.engine.target import Target

WIDTHS = (1, 2, 3, 5, 9, 17)
BLOCKS = 3
"""Stretches of repeats a measurement is cut into; the quietest one counts."""


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

    def draft(self, exit_layer: int) -> float:
        """Return seconds of one drafted token at `exit_layer`."""
        return self.step_at(1) + exit_layer * self.layer_at(1)

    def verify(self, exit_layer: int, gamma: float) -> float:
        """Return seconds of a verify pass over γ drafts whose first `exit_layer` layers are already done."""
        width = gamma + 1
        return (
            self.step_at(width)
            + exit_layer * self.layer_at(1)
            + (self.num_layers - exit_layer) * self.layer_at(width)
        )


@torch.inference_mode()
def measure_costs(
    target: Target, context: int = 128, do_sample: bool = False, repeats: int = 9, batch: int = 1
) -> Costs:
    """Time full and one-layer passes of several widths, interleaved, and split them into layer and fixed cost.

    A shared machine drifts, so every repeat visits every width and `quiet_seconds` sums the repeats up; more tokens
    never cost less, so what noise turned round is levelled by `non_decreasing`.
    """
    sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
    session = open_session(target, [[0] * context] * batch, 1, max(WIDTHS), sampler)
    session.pretend([context] * batch)
    seconds: dict[tuple[int, int], list[float]] = {}
    depths = (1, target.num_layers)
    for repeat in range(repeats + 1):
        for width in WIDTHS:
            for depth in depths:
                spent = timed(partial(_one_pass, session, depth, width), target.device)
                if repeat:
                    seconds.setdefault((depth, width), []).append(spent)
    quiet = {key: quiet_seconds(values) for key, values in seconds.items()}
    span = max(1, target.num_layers - 1)
    layer = [max(1e-9, (quiet[depths[1], width] - quiet[1, width]) / span) for width in WIDTHS]
    layer = non_decreasing(layer)
    step = [max(1e-9, quiet[1, width] - one) for width, one in zip(WIDTHS, layer, strict=True)]
    return Costs(WIDTHS, tuple(layer), tuple(non_decreasing(step)), target.num_layers)


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
    """Embed `width` tokens, run `depth` layers, and choose a token at every position."""
    target = session.target
    ids = torch.zeros((len(session.lengths), width), dtype=torch.long, device=target.device)
    window = session.window(width)
    hidden = target.embed_at(ids, window, session.cache)
    hidden = target.run(hidden, window, session.cache, 0, depth)
    logits = target.logits(hidden)
    if session.sampler.greedy:
        logits.argmax(dim=-1)
    else:
        session.sampler.draw(session.sampler.probs(logits))


def timed(call: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of one call, the device's queue included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def predicted_speedup(alpha: float, gamma: float, c: float, verify_ratio: float) -> float:
    """Return (1 + γα) / (γc + v(γ+1)): pooled α at this fixed γ, costs as shares of one plain step."""
    return (1 + gamma * alpha) / (gamma * c + verify_ratio)
