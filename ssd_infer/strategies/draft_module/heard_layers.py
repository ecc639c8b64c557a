"""The target's layers with one of them heard: what leaves it in prefill and verify passes goes to a draft as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.kernels.plain import grouped_layers
from ssd_infer.engine.session import Session
from ssd_infer.engine.window import Window


class HeardLayer(nn.Module):
    """A layer that hands on what it returns, and shows it."""

    def __init__(self, layer: nn.Module, hear: Callable[[Tensor], None]) -> None:
        """Borrow `layer`, whose states `(B, T, d)` are shown to `hear`."""
        super().__init__()
        self.layer, self._hear = layer, hear

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the layer returns."""
        out = self.layer(*args, **kwargs)
        self._hear(out[0] if isinstance(out, tuple) else out)
        return out


def heard_layers(session: Session, depth: int, hear: Callable[[Tensor], None]) -> Sequence[nn.Module]:
    """Return the layers that a plain decoding of `session` runs, the last of the first `depth` heard by `hear`."""
    found = grouped_layers(session)
    view = list(session.target.layers) if found is None else type(found)(found)
    view[depth - 1] = HeardLayer(view[depth - 1], hear)
    return view


@torch.inference_mode()
def prompt_states(session: Session, depth: int) -> Tensor:
    """Return states `(B, W, d)` after `depth` layers of what is committed in every row, run again in a cache apart.

    Rows are run one by one: at long contexts a second cache for all of them may not fit.
    """
    target, width = session.target, max(session.lengths)
    found: Tensor | None = None
    for at, (row, length) in enumerate(zip(session.rows, session.lengths, strict=True)):
        ids = torch.tensor([row.tokens[:length]], device=target.device)
        window, cache = Window(session.geometry, [0], length), target.new_cache(1, length)
        states = target.run(target.embed_at(ids, window, cache), window, cache, 0, depth)
        if found is None:
            found = states.new_zeros((len(session.rows), width, states.shape[-1]))
        found[at, :length] = states[0]
    assert found is not None
    return found
