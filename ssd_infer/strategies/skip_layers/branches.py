"""Single sublayers run on many hidden states of the same committed positions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.session import Session
from ssd_infer.engine.sublayers import SkipSet, View, side_by_side, skip_view
from ssd_infer.tuning.calibration_text import CalibrationSet, token_ids
from ssd_infer.tuning.scratch import Own, ScratchCache, ScratchWindow
from ssd_infer.tuning.text_states import choices


class Branches:
    """Run sublayers on J branches of every row; the branches of a row see its committed past and themselves only."""

    def __init__(self, material: CalibrationSet, own: Own | None = None) -> None:
        """Prepare for the positions of `material`; `own` replaces its way of seeing draft keys."""
        self.material = material
        self._own = own or material.own
        every = range(material.target.num_layers)
        self._attention = skip_view(material.target, SkipSet.of((), every))
        self._mlp = skip_view(material.target, SkipSet.of(every, ()))
        self._together = side_by_side(material.target) is not None
        self._opened: dict[int, tuple[ScratchWindow, ScratchCache]] = {}

    def full_states(self) -> tuple[Tensor, list[Tensor]]:
        """Return the full model's states `(B, T, d)` before all sublayers and after each of them."""
        target, material = self.material.target, self.material
        start = target.embed_at(material.ids, *self._open(1))
        states, state, before = [], start, start
        for index in range(2 * target.num_layers):
            if index % 2 and self._together:
                state = target.run(before, *self._open(1), index // 2, index // 2 + 1)
            else:
                before, state = state, self.keep(index, state.unsqueeze(0))[0]
            states.append(state)
        return start, states

    def keep(self, index: int, states: Tensor) -> Tensor:
        """Run sublayer `index` on `(J, B, T, d)` states."""
        count, batch = states.shape[:2]
        window, cache = self._open(int(count))
        rows = states.transpose(0, 1).reshape(batch * count, *states.shape[2:])
        view: View = self._mlp if index % 2 else self._attention
        out = self.material.target.run(rows, window, cache, index // 2, index // 2 + 1, view)
        return out.view(batch, count, *states.shape[2:]).transpose(0, 1)

    def _open(self, count: int) -> tuple[ScratchWindow, ScratchCache]:
        """Return window and cache for `count` branches of every row, made once."""
        if count not in self._opened:
            cache = ScratchCache(self.material.session.cache, count)
            self._opened[count] = (self.material.window(count, self._own), cache)
        return self._opened[count]


@torch.inference_mode()
def look_back(session: Session, width: int, own: Own = "causal") -> tuple[CalibrationSet, list[Tensor]]:
    """Return the last `width` committed positions of every row as material, and the full model's states there.

    The list holds 2L + 1 states `(B, T, d)`: before everything, then after each sublayer.
    """
    starts = [length - width for length in session.lengths]
    ids = token_ids(session, starts, width)
    material = CalibrationSet(session, starts, ids, ids, {}, own)
    start, states = Branches(material, own="diagonal").full_states()
    scores = session.committed_scores(session.target.logits(states[-1]), starts)
    material.reference = choices(session.sampler, scores)
    return material, [start, *states]
