"""Listen to a model's routers while it trains, and let them route less for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ssd_infer.errors import UnsupportedModelError
from ssd_infer.offload.layout import MoeLayer, moe_layers, unsupported_reason
from ssd_infer.strategies.reduced_experts.routing import (
    Renorm,
    Routing,
    all_weights,
    choose,
    normalises,
    ranked,
)


@dataclass(slots=True)
class Heard:
    """What one router said about a batch: probabilities `(N, E)` and the experts it chose `(N, k)`."""

    probs: Tensor
    index: Tensor


class Routers:
    """The routers of a model, in layer order."""

    def __init__(self, layers: Sequence[nn.Module], model_type: str) -> None:
        """Find the routers among decoder `layers`; raises UnsupportedModelError when there are none to train."""
        self.layers: list[MoeLayer] = moe_layers(layers)
        reason = unsupported_reason(model_type, self.layers)
        if reason is not None:
            raise UnsupportedModelError(
                f"recipe moe: {reason}; use model=qwen2_moe or an MoE checkpoint with model=hf"
            )

    @property
    def top_k(self) -> int:
        """k, experts a token is routed to."""
        return min(layer.top_k for layer in self.layers)

    @property
    def num_experts(self) -> int:
        """E, experts of a layer."""
        return self.layers[0].num_experts

    @contextmanager
    def listening(self) -> Iterator[list[Heard]]:
        """Collect what the routers say in the one forward pass made inside the context, layer by layer."""
        heard: list[Heard] = []

        def hook(_module: nn.Module, _args: object, out: Routing) -> None:
            heard.append(Heard(torch.softmax(out[0].float(), dim=-1), out[2]))

        handles = [layer.gate.register_forward_hook(hook) for layer in self.layers]
        try:
            yield heard
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def reduced(
        self, k_draft: int, renorm: Renorm, allowed: Sequence[Tensor | None] | None = None
    ) -> Iterator[None]:
        """Route every token to `k_draft` experts, of layer l only those in `allowed[l]` `(N, E)`, inside the context.

        The gates' `forward` is shadowed on the instance and restored on the way out, so parameters, hooks and
        checkpoints never change. Gradients reach the routers.
        """
        try:
            for place, layer in enumerate(self.layers):
                limits = None if allowed is None else allowed[place]
                layer.gate.__dict__["forward"] = _Reduced(layer, k_draft, renorm, limits)
            yield
        finally:
            for layer in self.layers:
                layer.gate.__dict__.pop("forward", None)


class _Reduced:
    """The forward of a gate that routes less."""

    def __init__(self, layer: MoeLayer, k_draft: int, renorm: Renorm, allowed: Tensor | None) -> None:
        self.gate = ranked(layer.gate, layer.num_experts)
        self.gate.__dict__.pop("forward", None)
        self.top_k, self.k_draft, self.renorm, self.allowed = layer.top_k, k_draft, renorm, allowed
        self.normalised = normalises(layer.gate)

    def __call__(self, hidden_states: Tensor) -> Routing:
        """Route `(…, d)` hidden states."""
        logits, weights = all_weights(self.gate, hidden_states)
        chosen = choose(weights, self.top_k, self.k_draft, self.renorm, self.normalised, self.allowed)
        return logits, *chosen
