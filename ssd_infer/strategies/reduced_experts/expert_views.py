"""Draft views of a mixture of experts: the target's layers, each with a router that uses fewer experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ssd_infer.engine.target import Target
from ssd_infer.offload.layout import MoeLayer, moe_layers
from ssd_infer.offload.offload import with_block
from ssd_infer.offload.resident import ResidentSet
from ssd_infer.strategies.reduced_experts.routing import ReducedRouter, Renorm

Listener = Callable[[MoeLayer, Tensor], None]
"""Hears (layer, the k experts `(N, k)` the full router would use)."""


def reduced_view(
    target: Target,
    k_draft: int | None,
    renorm: Renorm = "model",
    resident: ResidentSet | None = None,
    listener: Listener | None = None,
) -> list[nn.Module]:
    """Return the target's layers with routers that pick `k_draft` experts (None: all k), shallow copies throughout.

    With `resident` a token goes to experts in memory only. Layers without experts are the target's own.
    """
    view: list[nn.Module] = list(target.layers)
    for part in moe_layers(target.layers):
        router = ReducedRouter(
            part.gate,
            part.num_experts,
            part.top_k if k_draft is None else min(k_draft, part.top_k),
            renorm,
            None if resident is None else partial(resident.at_hand, part.index),
            None if listener is None else partial(listener, part),
        )
        view[part.index] = with_block(target.layers[part.index], part.block, {part.router: router})
    return view
