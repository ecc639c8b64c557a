"""Seconds of plain steps, reduced drafts and verify passes on real text, and the experts such passes need.

t(T) depends on which experts T tokens share and which of them are in memory, so nothing is timed on made-up tokens:
a text is read in windows of each width, as decoding would read it if every draft were right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ssd_infer.engine.costs import timed
from ssd_infer.engine.session import Session
from ssd_infer.engine.window import Window
from ssd_infer.experts.layout import MoeLayer, moe_layers
from ssd_infer.experts.union import membership, union_size
from ssd_infer.experts.views import reduced_view

WIDTHS = (2, 3, 5, 9, 17)
_WARM = 1


@dataclass(frozen=True, slots=True)
class MoeCosts:
    """Seconds of whole-model passes, and the mean union of experts a layer."""

    plain: float
    draft: float
    """One drafted token, while experts are read ahead where they are."""
    widths: tuple[int, ...]
    verify: tuple[float, ...]
    union: tuple[float, ...]
    """U(T) for each of `widths`."""
    top_k: int

    def verify_at(self, width: float) -> float:
        """Return seconds of a verify pass over `width` tokens, interpolated; as steep as at the end beyond."""
        last = self.widths[-1]
        if width <= last:
            return float(np.interp(width, (1, *self.widths), (self.plain, *self.verify)))
        slope = (self.verify[-1] - self.verify[-2]) / (last - self.widths[-2])
        return self.verify[-1] + max(0.0, slope) * (width - last)

    def speedup(self, rounds: Sequence[tuple[int, int]]) -> float:
        """Return the predicted speedup of `rounds` of (emitted, drafted) tokens."""
        spent = sum(drafted * self.draft + self.verify_at(drafted + 1) for _, drafted in rounds)
        return sum(emitted for emitted, _ in rounds) * self.plain / spent if rounds else 0.0


@torch.inference_mode()
def measure_costs(session: Session, text: Tensor, first: int, view: Sequence[nn.Module]) -> MoeCosts:
    """Read `text` `(B, T)` from position `first` on, in windows of one token and of every width, drafts before each.

    `session` must be open for at least T slots and prefilled up to `first`.
    """
    reader = _Reader(session, text, first, view)
    plain = reader.pass_seconds(1, draft=False)
    found = [reader.pass_seconds(width, draft=True) for width in WIDTHS if width <= reader.length]
    drafts = [seconds for _, parts in found for seconds in parts]
    unions = reader.unions()
    top_k = min(layer.top_k for layer in moe_layers(session.target.layers))
    return MoeCosts(
        plain=plain[0],
        draft=float(np.mean(drafts)),
        widths=tuple(width for width in WIDTHS if width <= reader.length),
        verify=tuple(seconds for seconds, _ in found),
        union=unions,
        top_k=top_k,
    )


class _Reader:
    """Passes over consecutive windows of a text."""

    def __init__(self, session: Session, text: Tensor, first: int, view: Sequence[nn.Module]) -> None:
        self.session, self.text, self.first, self.view = session, text, first, view
        self.length = int(text.shape[1]) - first

    def pass_seconds(self, width: int, *, draft: bool) -> tuple[float, list[float]]:
        """Return mean seconds of a pass over `width` tokens, and the seconds of each draft step between passes."""
        session, device = self.session, self.session.target.device
        verify: list[float] = []
        steps: list[float] = []
        for turn, at in enumerate(range(self.first, self.first + self.length - width + 1, width)):
            drafted = [
                timed(partial(self._run, at + ahead, 1, self.view), device)
                for ahead in range(width - 1 if draft else 0)
            ]
            seconds = timed(partial(self._run, at, width, session.layers), device)
            if turn >= _WARM:
                steps += drafted
                verify.append(seconds)
        return float(np.mean(verify)) if verify else seconds, steps

    def _run(self, at: int, width: int, layers: Sequence[nn.Module] | None) -> None:
        session, target = self.session, self.session.target
        window = Window(session.geometry, [at] * len(self.text), width)
        ids = self.text[:, at : at + width]
        target.logits(target.run(target.embed(ids), window, session.cache, layers=layers)).argmax(-1)

    def unions(self) -> tuple[float, ...]:
        """Return U(T) of the text for every width, a mean over layers."""
        heard: dict[int, Tensor] = {}

        def listen(layer: MoeLayer, index: Tensor) -> None:
            rows = index.view(len(self.text), -1, index.shape[-1])
            heard[layer.index] = membership(rows, layer.num_experts)

        view = reduced_view(self.session.target, None, listener=listen)
        self._run(self.first, self.length, view)
        widths = [width for width in WIDTHS if width <= self.length]
        return tuple(
            float(torch.stack([union_size(used, width) for used in heard.values()]).mean())
            for width in widths
        )
