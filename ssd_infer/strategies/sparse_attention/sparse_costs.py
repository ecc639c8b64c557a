"""Measured seconds of plain steps, sparse draft steps, selection and verification, at one batch and context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.grouped import FullAttention
from ssd_infer.engine.kernels.layers import attention_view
from ssd_infer.engine.session import Session
from ssd_infer.engine.target import SelfMasking, Target
from ssd_infer.strategies.sparse_attention.selectors import Budget, Pillar, Shape
from ssd_infer.strategies.sparse_attention.slot_budget import budget
from ssd_infer.strategies.sparse_attention.working_set import WorkingSet
from ssd_infer.tuning.costs import Curve, RoundCosts, session_at, timed
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.rounds import expected_tokens

WIDTHS = (2, 5, 8, 9, 13)
_TOUCHED = 96 << 20
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class SparseCosts:
    """Seconds of whole-model passes over one batch at one context."""

    plain: float
    budgets: tuple[int, ...]
    """Slots read a row, of which `draft` and `select` are known; costs between them are interpolated."""
    draft: tuple[float, ...]
    select: tuple[float, ...]
    """Choosing slots and gathering them, once a round."""
    widths: tuple[int, ...]
    """Tokens of the windows that `verify` belongs to."""
    verify: tuple[float, ...]

    def reading(self, slots: int) -> RoundCosts:
        """Return the costs of drafts that read `slots` a row."""
        draft, select = (Curve(self.budgets, seconds)(slots) for seconds in (self.draft, self.select))
        return RoundCosts(self.plain, draft, Curve(self.widths, self.verify), select)

    def best_gamma(self, slots: int, shares: Sequence[float], saved: float = 0.0) -> tuple[int, float]:
        """Return the γ of 1…len(shares) with the highest predicted speedup, and that speedup.

        `shares` are the probabilities that the k-th draft is right where those before it were; `saved` the seconds that
        the draft's head takes less than the model's.
        """
        costs, lengths = self.reading(slots).cheaper(saved), range(1, len(shares) + 1)
        options = [(gamma, costs.speedup(expected_tokens(shares[:gamma]), gamma)) for gamma in lengths]
        return max(options, key=lambda option: option[1])


_known: Memo[SparseCosts] = Memo()


def cached_costs(target: Target, context: int, batch: int) -> SparseCosts:
    """Return the costs at this batch and about this context (to a quarter octave), measured the first time."""
    near = round(2 ** (round(4 * np.log2(max(context, 16))) / 4))
    return _known.cached(target.model, (near, batch), lambda: measure(target, near, batch))


@torch.inference_mode()
def measure(target: Target, context: int, batch: int) -> SparseCosts:
    """Time passes through as many layers as it takes to miss the processor's caches, interleaved; scale to all.

    What a pass costs without any layer is timed apart, so that it is not scaled. The keys are constants: written, so
    that every page is really read, and of no influence on the time.
    """
    session = session_at(target, context, batch, max(WIDTHS))
    budgets = tuple(budget(context, ratio, 64) for ratio in (0.025, 0.2))
    bench = _Bench(session, target, budgets)
    calls: dict[str, Callable[[], None]] = {
        "plain": lambda: bench.full(1, bench.plain_view),
        "bare1": lambda: bench.full(1, bench.plain_view, depth=0),
        "head1": lambda: bench.head(1),
    }
    for at in range(len(budgets)):
        calls[f"select{at}"] = partial(bench.select, at)
        calls[f"draft{at}"] = bench.draft  # on what has just been selected
    for size in WIDTHS:
        calls[f"verify{size}"] = partial(bench.full, size, bench.heard_view)
        calls[f"bare{size}"] = partial(bench.full, size, bench.heard_view, depth=0)
        calls[f"head{size}"] = partial(bench.head, size)
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(_REPEATS + 1):
        for name, call in calls.items():
            seconds = timed(call, target.device)
            if repeat:
                spent[name].append(seconds)
    median = {name: float(np.median(values)) for name, values in spent.items()}
    scale = target.num_layers / bench.depth

    def whole(name: str, width: int) -> float:
        bare = median[f"bare{width}"]
        return scale * max(median[name] - bare, 0.0) + bare + median[f"head{width}"]

    return SparseCosts(
        plain=whole("plain", 1),
        budgets=budgets,
        draft=tuple(whole(f"draft{at}", 1) for at in range(len(budgets))),
        select=tuple(scale * median[f"select{at}"] for at in range(len(budgets))),
        widths=WIDTHS,
        verify=tuple(whole(f"verify{size}", size) for size in WIDTHS),
    )


class _Bench:
    """A few layers over a filled cache."""

    def __init__(self, session: Session, target: Target, budgets: tuple[int, ...]) -> None:
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
        self.selectors = [Pillar(shape, Budget(1e-9, slots)) for slots in budgets]
        generator = torch.Generator(target.device).manual_seed(0)
        for selector in self.selectors:
            selector.scores.uniform_(generator=generator)
        heard = Pillar(shape, Budget(1e-9, 1))
        self.heard_view = attention_view(target, FullAttention(self.cache, heard))
        self.working = WorkingSet(self.cache)
        self.draft_view = attention_view(target, self.working)

    def _fill(self, layer: int) -> None:
        hidden = self._embed(1)
        window = self.session.window(1)
        self.target.run(hidden, window, self.cache, layer, layer + 1, layers=self.plain_view)
        for stored in self.cache.held(layer):
            stored.fill_(0.01)

    def _embed(self, width: int) -> torch.Tensor:
        ids = torch.zeros((len(self.session.lengths), width), dtype=torch.long, device=self.target.device)
        return self.target.embed_at(ids, self.session.window(width), self.cache)

    def full(self, width: int, view: SelfMasking, depth: int | None = None) -> None:
        """Run full attention over a window of `width`, through `depth` layers (None: all of the bench)."""
        last = self.depth if depth is None else depth
        self.target.run(self._embed(width), self.session.window(width), self.cache, 0, last, layers=view)

    def draft(self) -> None:
        """Run one draft step."""
        self.working.at(0)
        hidden, window = self._embed(1), self.session.window(1)
        self.target.run(hidden, window, self.working, 0, self.depth, layers=self.draft_view)

    def select(self, at: int) -> None:
        """Choose slots within one of the budgets and gather them."""
        choice = self.selectors[at].choose(self.session.lengths)
        self.working.gather(choice.slots, choice.hidden, room=8)

    def head(self, width: int) -> None:
        """Embed and unembed `width` tokens a row."""
        self.target.logits(self._embed(width)).argmax(dim=-1)
