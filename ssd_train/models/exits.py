"""Find what an early exit needs in a transformers causal LM, and tap hidden states on their way through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ssd_infer.engine.model_view import evaluating
from ssd_infer.errors import UnsupportedModelError

_LAYERS = ("layers", "h", "blocks")
_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


@dataclass(slots=True)
class Taps:
    """Hidden states caught during one forward: `layer[l]` is the output of layer l, `final` is after the norm."""

    layer: dict[int, Tensor] = field(default_factory=dict)
    final: Tensor | None = None


class ExitModel:
    """Decoder layers, final norm and head of a causal LM; exit E predicts with head(norm(output of layer E-1))."""

    def __init__(self, model: nn.Module) -> None:
        """Find the parts of `model`; raises UnsupportedModelError naming the missing one."""
        self.model = model
        base = getattr(model, "base_model", model)
        self.layers: list[nn.Module] = list(_first(base, _LAYERS, model, "list of decoder layers"))
        self.norm: nn.Module = _first(base, _NORMS, model, "final norm")
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
        if not isinstance(head, nn.Linear):
            raise UnsupportedModelError(
                f"{type(model).__name__} has no linear output head to share with its exits"
            )
        self.head: nn.Linear = head

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(self.layers)

    def normed(self, hidden: Tensor, *, detach: bool = False) -> Tensor:
        """Return norm(hidden); `detach` keeps the gradient out of the norm's own parameters.

        The norm's `forward` is called past its hooks: those of a sharding wrapper belong to the model's own pass.
        """
        if not detach:
            return self.norm.forward(hidden)  # type: ignore[no-any-return]
        bare = _Bare(self.norm)
        frozen = {name: parameter.detach() for name, parameter in bare.named_parameters()}
        out: Tensor = functional_call(bare, frozen, (hidden,))
        return out

    @contextmanager
    def tapping(self, layers: Sequence[int]) -> Iterator[Taps]:
        """Catch the outputs of `layers` and of the final norm in the forward passes made inside the context."""
        taps = Taps()

        def catch(index: int) -> Any:
            def hook(_module: nn.Module, _args: Any, out: Any) -> None:
                taps.layer[index] = out[0] if isinstance(out, tuple) else out

            return hook

        def catch_final(_module: nn.Module, _args: Any, out: Tensor) -> None:
            taps.final = out

        handles = [self.layers[index].register_forward_hook(catch(index)) for index in layers]
        handles.append(self.norm.register_forward_hook(catch_final))
        try:
            yield taps
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def check(self) -> None:
        """Raise UnsupportedModelError unless the model's logits are exactly head(final norm) of its last layer."""
        device = self.head.weight.device
        ids = torch.arange(4, device=device)[None] % self.head.out_features
        with evaluating(self.model):
            with self.tapping([self.num_layers - 1]) as taps:
                logits = self.model(input_ids=ids, use_cache=False).logits
            ours = self.head(self.normed(taps.layer[self.num_layers - 1]))
        if not torch.allclose(logits.float(), ours.float(), rtol=1e-3, atol=1e-3):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} changes its logits after the head (soft-capping or scaling), so an exit "
                "cannot be trained through lm_head(norm(x)); use a Llama-type model"
            )


class _Bare(nn.Module):
    """A module without its hooks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return self.inner.forward(*args)


def _first(owner: nn.Module, names: Sequence[str], model: nn.Module, what: str) -> Any:
    for name in names:
        part = getattr(owner, name, None)
        if part is not None:
            return part
    raise UnsupportedModelError(
        f"{type(model).__name__} has no {what} this toolkit knows (looked for {', '.join(names)})"
    )
