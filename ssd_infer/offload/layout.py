"""Find the routed experts of a transformers model: one router and one stack of `experts` a layer.

Since transformers 5 all families keep them alike: a router returns (logits, weights, indices) and reads how many it
picks at every call. They differ in where it stands. `FAMILIES` also keep their experts alike: `mlp.experts` holds
`gate_up_proj` `(E, 2·d_ff, d)` and `down_proj` `(E, d, d_ff)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

MATRICES = ("gate_up_proj", "down_proj")
"""The two matrices of an expert, in the order a store keeps them."""
FAMILIES = ("qwen3_moe", "olmoe", "mixtral", "qwen2_moe", "deepseek_v2", "deepseek_v3")
"""`model_type`s whose routers and experts are known and tested: they can be trained and kept on disk."""
ROUTED = (
    *(*FAMILIES, "qwen3_next", "qwen3_5_moe_text", "granitemoe", "granitemoehybrid"),
    *("gpt_oss", "minimax_m2", "nemotron_h", "gemma4_text"),
)
"""`model_type`s whose routers are known and tested: they can pick fewer experts."""
_ALL_RUN = {"llama4_text"}
"""`model_type`s whose layers run every expert on every token, and weigh those not chosen with zero."""
_PLACES = (
    ("mlp", "gate"),
    ("mlp", "router"),
    ("block_sparse_moe", "router"),
    ("mixer", "gate"),
    (None, "router"),
)
"""Where families keep a router: the module of a layer it stands in beside `experts`, or None for the layer itself."""
_ROUTED = re.compile(r"Expert|Router")


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """The routed part of decoder layer `index`."""

    index: int
    gate: nn.Module
    experts: nn.Module
    block: str | None = "mlp"
    """Name of the module of the layer that routes; None where the layer does so itself."""
    router: str = "gate"
    """Name of the router in it."""

    @property
    def top_k(self) -> int:
        """k, experts a token is routed to."""
        return top_k_of(self.gate)

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


def top_k_of(gate: nn.Module) -> int:
    """Return k of a router, which keeps it itself or in its configuration."""
    own: Any = gate
    return int(own.top_k if hasattr(gate, "top_k") else own.config.top_k_experts)


def moe_layers(layers: Iterable[nn.Module]) -> list[MoeLayer]:
    """Return the layers among `layers` that route, in order; empty for a dense model."""
    found = [_routed(index, layer) for index, layer in enumerate(layers)]
    return [part for part in found if part is not None]


def _routed(index: int, layer: nn.Module) -> MoeLayer | None:
    for block, router in _PLACES:
        home = layer if block is None else getattr(layer, block, None)
        gate, experts = getattr(home, router, None), getattr(home, "experts", None)
        if isinstance(gate, nn.Module) and isinstance(experts, nn.Module):
            return MoeLayer(index, gate, experts, block, router)
    return None


def routes(layers: Iterable[nn.Module]) -> bool:
    """Tell whether any of `layers` routes tokens to experts, in whatever form its family keeps them."""
    return any(_ROUTED.search(type(part).__name__) for layer in layers for part in layer.modules())


def unsupported_reason(
    model_type: str,
    layers: list[MoeLayer],
    decoder: Iterable[nn.Module] = (),
    known: Sequence[str] = FAMILIES,
) -> str | None:
    """Return None when the routed experts can be thinned out, otherwise the reason in one sentence.

    `layers` are those of known form among the layers of `decoder`, `known` the types of model that will do.
    """
    if model_type in _ALL_RUN:
        return f"all experts of {model_type} models run for every token, so that choosing fewer saves nothing"
    if not layers and routes(decoder):
        return (
            f"{model_type} models keep their routed experts in a form that is not known here "
            f"(known: {', '.join(known)})"
        )
    if not layers:
        return "it drafts with fewer experts per token, and this checkpoint has no routed experts"
    if model_type not in known:
        return f"the routed experts of {model_type} models are not known here (known: {', '.join(known)})"
    if max(layer.top_k for layer in layers) < 2:
        return "its tokens go to a single expert each, so there is nothing to leave out"
    return None
