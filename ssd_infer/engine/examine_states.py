"""Compare what recurrent layers remember of several tokens at once with what they remember of one after another.

Logits may not show for a while that a state went astray; the text that follows would.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_infer.engine.recurrent import RecurrentCache
from ssd_infer.engine.window import Window

if TYPE_CHECKING:
    from ssd_infer.engine.target import Target

_PROMPT, _TOKENS = 6, 18


def states_apart(target: Target) -> float:
    """Return how far states after blocks are from those after single tokens, as a share of a state's largest entry."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(target.vocab_size, (1, _TOKENS), generator=draw).to(target.device)
    blocks = _states(target, ids, [0, _PROMPT, _PROMPT + 5, _TOKENS])
    steps = _states(target, ids, [0, *range(_PROMPT, _TOKENS + 1)])
    apart = [_share(one, other) for one, other in zip(blocks, steps, strict=True)]
    return float(torch.tensor(apart, dtype=torch.float64).max()) if apart else 0.0


def _states(target: Target, ids: Tensor, cuts: list[int]) -> list[Tensor]:
    """Return the states of all layers after `ids` `(1, T)` in passes cut at `cuts`."""
    cache, geometry = target.new_cache(1, ids.shape[1]), target.geometry(ids.shape[1], prompts=cuts[1:2])
    assert isinstance(cache, RecurrentCache)
    for first, last in pairwise(cuts):
        window = Window(geometry, [first], last - first)
        target.run(target.embed_at(ids[:, first:last], window, cache), window, cache)
    return cache.tensors()


def _share(one: Tensor, other: Tensor) -> float:
    scale = float(one.float().abs().max()) + 1e-6
    return float((one.float() - other.float()).abs().max()) / scale
