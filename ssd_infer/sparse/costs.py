"""Measured seconds of plain steps, sparse draft steps, selection and verification, at one batch and context."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.costs import timed
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Session, open_session
from ssd_infer.engine.target import SelfMasking, Target
from ssd_infer.sparse.attention import FullAttention
from ssd_infer.sparse.budget import budget
from ssd_infer.sparse.selectors import Budget, Pillar, Shape
from ssd_infer.sparse.views import attention_view
from ssd_infer.sparse.working_set import WorkingSet

WIDTHS = (2, 5, 8, 9, 13)
_TOUCHED = 96 << 20
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class SparseCosts:
    """Seconds of whole-model passes over one batch; `verify[i]` belongs to windows of `widths[i]` tokens."""

    plain: float
    draft: float
    select: float
    """Choosing slots and gathering them, once a round."""
    widths: tuple[int, ...]
    verify: tuple[float, ...]

    def round(self, gamma: int) -> float:
        """Return the seconds of one round of γ drafts."""
        verify = float(np.interp(gamma + 1, self.widths, self.verify))
        return self.select + gamma * self.draft + verify

    def speedup(self, gamma: int, agreement: float) -> float:
        """Return the predicted speedup when each draft is right with probability `agreement`."""
        return expected_tokens(gamma, agreement) * self.plain / self.round(gamma)

    def best_gamma(self, agreement: float, most: int) -> int:
        """Return the γ of 1…`most` with the highest predicted speedup."""
        return max(range(1, most + 1), key=lambda gamma: self.speedup(gamma, agreement))


def expected_tokens(gamma: int, agreement: float) -> float:
    """Return τ = (1 - a^(γ+1)) / (1 - a), tokens a verify with independent agreement a."""
    if agreement >= 1:
        return gamma + 1.0
    return float((1 - agreement ** (gamma + 1)) / (1 - agreement))


_known: weakref.WeakKeyDictionary[nn.Module, dict[tuple[int, ...], SparseCosts]] = weakref.WeakKeyDictionary()


def recall(target: Target, context: int, batch: int, ratio: float, min_budget: int) -> SparseCosts:
    """Return the costs at this batch and about this context (to a quarter octave), measured the first time."""
    near = round(2 ** (round(4 * np.log2(max(context, 16))) / 4))
    width = budget(near, ratio, min_budget)
    key = (near, batch, width, torch.get_num_threads())
    known = _known.setdefault(target.model, {})
    if key not in known:
        known[key] = measure(target, near, batch, width)
    return known[key]


@torch.inference_mode()
def measure(target: Target, context: int, batch: int, width: int) -> SparseCosts:
    """Time passes through as many layers as it takes to miss the processor's caches, interleaved; scale to all.

    The keys are constants: written, so that every page is really read, and of no influence on the time.
    """
    sampler = Sampler(SamplingParams(), target.device, seed=0)
    session = open_session(target, [[0] * context] * batch, 1, max(WIDTHS), sampler)
    session.lengths = [context] * batch
    bench = _Bench(session, target, width)
    calls: dict[str, Callable[[], None]] = {
        "draft": bench.draft,
        "select": bench.select,
        "plain": lambda: bench.full(1, bench.plain_view),
        "step": lambda: bench.head(1),
    }
    for size in WIDTHS:
        calls[f"verify{size}"] = lambda size=size: bench.full(size, bench.heard_view)  # type: ignore[misc]
        calls[f"step{size}"] = lambda size=size: bench.head(size)  # type: ignore[misc]
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(_REPEATS + 1):
        for name, call in calls.items():
            seconds = timed(call, target.device)
            if repeat:
                spent[name].append(seconds)
    median = {name: float(np.median(values)) for name, values in spent.items()}
    scale = target.num_layers / bench.depth
    return SparseCosts(
        plain=scale * median["plain"] + median["step"],
        draft=scale * median["draft"] + median["step"],
        select=scale * median["select"],
        widths=WIDTHS,
        verify=tuple(scale * median[f"verify{size}"] + median[f"step{size}"] for size in WIDTHS),
    )


class _Bench:
    """A few layers over a filled cache."""

    def __init__(self, session: Session, target: Target, width: int) -> None:
        self.session, self.target = session, target
        lengths = session.lengths
        self.depth = 1
        self.cache = RowCache(len(lengths), session.geometry.capacity, target.num_layers)
        self.plain_view = attention_view(target, FullAttention(self.cache))
        self._fill(0)
        weights = sum(weight.numel() * weight.element_size() for weight in target.layers[0].parameters())
        self.depth = min(target.num_layers, 1 + _TOUCHED // (self.cache.nbytes() + weights))
        self.cache.num_layers = self.depth
        for layer in range(1, self.depth):
            self._fill(layer)
        shape = Shape.of(target, self.cache, lengths)
        self.selector = Pillar(shape, Budget(1e-9, width))
        self.selector.scores.uniform_()
        self.heard_view = attention_view(target, FullAttention(self.cache, self.selector))
        self.working = WorkingSet(self.cache)
        self.draft_view = attention_view(target, self.working)
        self.select()

    def _fill(self, layer: int) -> None:
        hidden = self._embed(1)
        window = self.session.window(1)
        self.target.run(hidden, window, self.cache, layer, layer + 1, layers=self.plain_view)
        for stored in self.cache.held(layer):
            stored.fill_(0.01)

    def _embed(self, width: int) -> torch.Tensor:
        ids = torch.zeros((len(self.session.lengths), width), dtype=torch.long, device=self.target.device)
        hidden: torch.Tensor = self.target.embed(ids)
        return hidden

    def full(self, width: int, view: SelfMasking) -> None:
        """Run full attention over a window of `width`."""
        self.target.run(
            self._embed(width), self.session.window(width), self.cache, 0, self.depth, layers=view
        )

    def draft(self) -> None:
        """Run one draft step."""
        self.working.at(0)
        hidden, window = self._embed(1), self.session.window(1)
        self.target.run(hidden, window, self.working, 0, self.depth, layers=self.draft_view)

    def select(self) -> None:
        """Choose slots and gather them."""
        choice = self.selector.choose(self.session.lengths)
        self.working.gather(choice.slots, choice.hidden, room=8)

    def head(self, width: int) -> None:
        """Embed and unembed `width` tokens a row."""
        self.target.logits(self._embed(width)).argmax(dim=-1)
