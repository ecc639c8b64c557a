"""Muon for stacks of matrices: the experts of a mixture, each orthogonalised on its own, all in one batched product.

torch's Muon takes single matrices only. Update rule and coefficients are those of Jordan et al. (2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


@torch.no_grad()
def orthogonalise(stack: Tensor) -> Tensor:
    """Return `(E, m, n)` matrices with the singular vectors of `stack` and singular values near one, in bfloat16.

    Five Newton-Schulz steps; the spread of singular values that is left, about 0.7 to 1.2, does no harm.
    """
    a, b, c = _COEFFICIENTS
    wide: Tensor = stack.bfloat16()
    tall = wide.shape[-2] > wide.shape[-1]
    if tall:
        wide = wide.mT
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(_STEPS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    found: Tensor = wide.mT if tall else wide
    return found


class StackedMuon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised matrix by matrix, with decoupled weight decay; parameters are `(E, m, n)`."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        """Optimise `params`; the step of an m×n matrix is scaled by √max(1, m/n)."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
        update = orthogonalise(grad.lerp(momentum, group["momentum"]))
        rows, columns = parameter.shape[-2:]
        scale = max(1.0, rows / columns) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * scale)
