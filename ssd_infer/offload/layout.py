"""Find the routed experts of a transformers model: one router `gate` and one stack of `experts` a layer.

Since transformers 5 all families keep them alike: `mlp.gate` returns (logits, weights, indices) and reads its `top_k`
at every call, `mlp.experts` holds `gate_up_proj` `(E, 2·d_ff, d)` and `down_proj` `(E, d, d_ff)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

MATRICES = ("gate_up_proj", "down_proj")
"""The two matrices of an expert, in the order a store keeps them."""
FAMILIES = ("qwen3_moe", "olmoe", "mixtral", "qwen2_moe", "deepseek_v2", "deepseek_v3")
"""`model_type`s whose routers are known and tested."""
_ROUTED = re.compile(r"Expert|Router")


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """The routed part of decoder layer `index`."""

    index: int
    gate: nn.Module
    experts: nn.Module

    @property
    def top_k(self) -> int:
        """k, experts a token is routed to."""
        return int(cast(Any, self.gate).top_k)

    @property
    def num_experts(self) -> int:
        """E, routed experts of this layer."""
        return int(cast(Any, self.experts).num_experts)

    @property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """`gate_up_proj` and `down_proj`."""
        first, second = (cast(Tensor, getattr(self.experts, name)) for name in MATRICES)
        return first, second

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return sum(part[0].numel() * part.element_size() for part in self.matrices)


def moe_layers(layers: Iterable[nn.Module]) -> list[MoeLayer]:
    """Return the layers among `layers` that route, in order; empty for a dense model."""
    found = []
    for index, layer in enumerate(layers):
        block = getattr(layer, "mlp", None)
        gate, experts = getattr(block, "gate", None), getattr(block, "experts", None)
        if isinstance(gate, nn.Module) and isinstance(experts, nn.Module) and hasattr(gate, "top_k"):
            found.append(MoeLayer(index, gate, experts))
    return found


def routes(layers: Iterable[nn.Module]) -> bool:
    """Tell whether any of `layers` routes tokens to experts, in whatever form its family keeps them."""
    return any(_ROUTED.search(type(part).__name__) for layer in layers for part in layer.modules())


def unsupported_reason(
    model_type: str, layers: list[MoeLayer], decoder: Iterable[nn.Module] = ()
) -> str | None:
    """Return None when the routed experts can be thinned out, otherwise the reason in one sentence.

    `layers` are those of known form among the layers of `decoder`.
    """
    if not layers and routes(decoder):
        return (
            f"{model_type} models keep their routed experts in another form than a router `mlp.gate` and a stack "
            f"`mlp.experts` (known: {', '.join(FAMILIES)})"
        )
    if not layers:
        return "it drafts with fewer experts per token, and this checkpoint has no routed experts"
    if model_type not in FAMILIES:
        return f"the routers of {model_type} models are not known here (known: {', '.join(FAMILIES)})"
    missing = [name for name in MATRICES if not hasattr(layers[0].experts, name)]
    if missing:
        kind = type(layers[0].experts).__name__
        return f"{kind} keeps its experts without `{missing[0]}`"
    if max(layer.top_k for layer in layers) < 2:
        return "its tokens go to a single expert each, so there is nothing to leave out"
    return None
