"""The products of a training step in float32 on a CPU, through the faster of torch's two libraries.

A linear layer multiplies three times a step: forward, back to its input, and for the gradient of its weight. torch
gives all three to MKL, which on AMD's processors reaches half of the arithmetic that oneDNN reaches. Both compute in
IEEE float32 and add in another order. Decoding measures which is faster (`ssd_infer.engine.kernels.products`); training
goes by the kind of processor, since a run must compute the same after a resume.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ssd_infer.engine.kernels.products import large
from ssd_train.losses.processor import prefers_onednn


def use_fast_products(model: nn.Module) -> int:
    """Let the linear layers of `model` take the faster library from now on; return how many do, 0 where none is.

    The layers stay the objects they are, with their parameters, hooks and names. Subclasses (quantised layers,
    adapters) and layers whose forward was replaced are left alone.
    """
    if not prefers_onednn():
        return 0
    plain = [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in vars(layer)]
    for layer in plain:
        layer.__class__ = FastLinear
    return len(plain)


class FastLinear(nn.Linear):
    """A linear layer whose three products of a training step go where they are fast."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `(…, N)` for `(…, K)`."""
        if not is_fast(hidden, self.weight):
            return functional.linear(hidden, self.weight, self.bias)
        found: Tensor = _Product.apply(hidden, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def is_fast(hidden: Tensor, weight: Tensor) -> bool:
    """Tell whether `multiply` is for `hidden` `(…, K)` and `weight` `(N, K)`: large, whole, float32 in host memory."""
    kinds = (Tensor, nn.Parameter)
    return (
        large(hidden.numel() * weight.shape[0])
        and prefers_onednn()
        and hidden.dtype is weight.dtype is torch.float32
        and hidden.device.type == weight.device.type == "cpu"
        and type(hidden) in kinds
        and type(weight) in kinds
        and not torch.is_autocast_enabled("cpu")
    )


def multiply(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `hidden` `(…, K)` times `weight` `(N, K)` transposed, plus `bias` `(N)`; keeps no gradient."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(hidden, weight, bias, "none", [], "")
    return out


def back_to_input(grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient `(M, K)` of a layer's input for that of its output `(M, N)`."""
    return multiply(grad, weight.t())


def back_to_weight(grad: Tensor, hidden: Tensor) -> Tensor:
    """Return the gradient `(N, K)` of a weight for that of its output `(M, N)` and its input `(M, K)`.

    The longer side of the result comes last in memory while it is multiplied, which is a quarter faster.
    """
    if grad.shape[1] > hidden.shape[1]:
        return multiply(hidden.t(), grad.t()).t()
    return multiply(grad.t(), hidden.t())


class _Product(torch.autograd.Function):
    """`functional.linear`, differentiable once."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return multiply(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        to_hidden, to_weight, to_bias = ctx.needs_input_grad
        return (
            back_to_input(rows, weight).view(hidden.shape) if to_hidden else None,
            back_to_weight(rows, hidden.reshape(-1, hidden.shape[-1])) if to_weight else None,
            rows.sum(0) if to_bias else None,
        )


def write_input_gradient(grad: Tensor, weight: Tensor, into: Tensor) -> None:
    """Write the gradient of the hidden states `(M, d)` of logits with gradient `(M, V)` to `into`."""
    if is_fast(grad, weight.t()):
        into.copy_(back_to_input(grad, weight))
    else:
        torch.mm(grad, weight.to(grad.dtype), out=into)


def add_weight_gradient(grad: Tensor, states: Tensor, into: Tensor) -> None:
    """Add the gradient of the head `(V, d)` to `into`."""
    if grad.dtype != into.dtype:
        into += grad.t() @ states
    elif is_fast(grad.t(), states.t()):
        into += back_to_weight(grad, states)
    else:
        into.addmm_(grad.t(), states)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return what sums over tensors of `dtype` are made in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
