"""Seconds of plain steps, reduced drafts and verify passes on real text, and the experts such passes need.

t(T) depends on which experts T tokens share and which of them are in memory, so nothing is timed on made-up tokens:
texts are read in windows of all widths, as decoding would read them if every draft were right. What wrong drafts and
choosing tokens add is not in such passes; it is the factor by which real rounds took longer than passes say.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.offload.layout import MoeLayer
from ssd_infer.strategies.reduced_experts.expert_views import reduced_view
from ssd_infer.strategies.reduced_experts.union import membership, union_size
from ssd_infer.tuning.costs import Curve, RoundCosts, non_decreasing, timed

WIDTHS = (2, 3, 5, 9, 17)


class CostMeter:
    """Times of passes over consecutive windows of texts, drafts before each; every text begins with another width."""

    def __init__(self, target: Target) -> None:
        """Start with no times."""
        self.target = target
        self._texts = 0
        self._drafts: list[float] = []
        self._verify: dict[int, list[float]] = {width: [] for width in WIDTHS}
        self._unions: dict[int, list[float]] = {width: [] for width in WIDTHS}

    @torch.inference_mode()
    def read(self, session: Session, text: list[int], first: int, view: Sequence[nn.Module]) -> None:
        """Read `text` from position `first` on; `session` must be open for its length and prefilled up to `first`."""
        ids = torch.tensor([text], device=self.target.device)
        session.pretend([first])  # a text already decoded; states of recurrence begin anew
        at, turn = first, self._texts
        while at < len(text):
            session.cache.commit([at])
            width = min(WIDTHS[turn % len(WIDTHS)], len(text) - at)
            for ahead in range(width - 1):
                self._drafts.append(self._timed(session, ids, at + ahead, 1, view))
            seconds = self._timed(session, ids, at, width, session.layers)
            if width in self._verify:
                self._verify[width].append(seconds)
            at, turn = at + width, turn + 1
        self._texts += 1
        self._read_unions(session, ids, first)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of which both times and unions are known."""
        return tuple(width for width in WIDTHS if self._verify[width] and self._unions[width])

    def costs(self, plain: float) -> RoundCosts:
        """Return the means, with seconds of a plain step; wider passes never cost less."""
        verify = non_decreasing([float(np.mean(self._verify[width])) for width in self.widths])
        curve = Curve((1, *self.widths), (plain, *verify), steep=True)
        return RoundCosts(plain, float(np.mean(self._drafts)), curve)

    def unions(self) -> dict[int, float]:
        """Return U(T) by T, the mean over layers, texts and places."""
        return {width: float(np.mean(self._unions[width])) for width in self.widths}

    def _timed(
        self, session: Session, ids: Tensor, at: int, width: int, layers: Sequence[nn.Module] | None
    ) -> float:
        return timed(partial(_run, session, ids, at, width, layers), self.target.device)

    def _read_unions(self, session: Session, ids: Tensor, first: int) -> None:
        """Note U(T) of the text for every width, a mean over layers."""
        heard: list[Tensor] = []

        def listen(layer: MoeLayer, index: Tensor) -> None:
            heard.append(membership(index, layer.num_experts))

        length = ids.shape[1] - first
        session.pretend([first])
        _run(session, ids, first, length, reduced_view(self.target, None, listener=listen))
        for width in WIDTHS:
            if width <= length:
                self._unions[width].append(float(np.mean([float(union_size(u, width)) for u in heard])))


def _run(session: Session, ids: Tensor, at: int, width: int, layers: Sequence[nn.Module] | None) -> None:
    """Run one pass over `width` tokens of `ids` `(1, T)` from position `at` on, and choose tokens."""
    target = session.target
    window = Window(session.geometry, [at], width)
    hidden = target.embed_at(ids[:, at : at + width], window, session.cache)
    target.logits(target.run(hidden, window, session.cache, layers=layers)).argmax(-1)
