"""Muon with the matrices of equal shape orthogonalised together, all in one batched product.

torch's Muon takes one matrix after the other, which on a small model is hundreds of products too short to be fast, and
it takes no stack of experts. Update rule and coefficients are those of Jordan et al. (2024), as torch has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ssd_train.losses.processor import multiplies_bfloat16

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_TINY = 1e-7
_TOGETHER = 1 << 24
"""Numbers that are orthogonalised at a time: larger matrices gain nothing by company, and the copies cost memory."""


def precision(device: torch.device) -> torch.dtype:
    """Return what the iteration computes in on `device`: bfloat16, and float32 on CPUs that would emulate it."""
    fast = device.type != "cpu" or multiplies_bfloat16()
    return torch.bfloat16 if fast else torch.float32


@torch.no_grad()
def orthogonalise(stack: Tensor) -> Tensor:
    """Return `(E, m, n)` matrices with the singular vectors of `stack` and singular values near one.

    Five Newton-Schulz steps in the `precision` of the device; the spread of singular values that is left, about 0.7 to
    1.2, does no harm.
    """
    a, b, c = _COEFFICIENTS
    wide: Tensor = stack.to(precision(stack.device))
    tall = wide.shape[-2] > wide.shape[-1]
    if tall:
        wide = wide.mT
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp_min(_TINY)
    for _ in range(_STEPS):
        gram = torch.bmm(wide, wide.mT)
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    found: Tensor = wide.mT if tall else wide
    return found


class StackedMuon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised matrix by matrix, with decoupled weight decay.

    Parameters are matrices `(m, n)` or stacks of them `(E, m, n)`, whole on every process. State and groups have the
    names of `torch.optim.Muon`, so that either resumes what the other has saved.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        """Optimise `params`; the step of an m×n matrix is scaled by √max(1, m/n)."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            for together in _alike(moving):
                self._update(together, group)
        return loss

    def _update(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Move `parameters`, whose matrices have one shape up to transposition."""
        wide = torch.cat([_wide(self._direction(parameter, group["momentum"])) for parameter in parameters])
        updates = orthogonalise(wide).split([_count(parameter) for parameter in parameters])
        for parameter, update in zip(parameters, updates, strict=True):
            rows, columns = parameter.shape[-2:]
            turned = update.mT if rows > columns else update
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            scale = max(1.0, rows / columns) ** 0.5
            parameter.add_(turned.reshape(parameter.shape).to(parameter.dtype), alpha=-group["lr"] * scale)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """Renew the momentum of `parameter` and return what is to be orthogonalised."""
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        held: Tensor = state["momentum_buffer"].lerp_(grad, 1 - momentum)
        return grad.lerp(held, momentum)


def _alike(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return `parameters` in parts that are orthogonalised together: one shape, type and device, limited in size."""

    def kind(parameter: Tensor) -> tuple[Any, ...]:
        return (*sorted(parameter.shape[-2:]), str(parameter.dtype), str(parameter.device))

    parts = []
    for _, same in groupby(sorted(parameters, key=kind), key=kind):
        part: list[Tensor] = []
        for parameter in same:
            if part and sum(other.numel() for other in part) + parameter.numel() > _TOGETHER:
                parts.append(part)
                part = []
            part.append(parameter)
        parts.append(part)
    return parts


def _wide(direction: Tensor) -> Tensor:
    """Return `(E, m, n)` with m ≤ n of a matrix or a stack of either form."""
    stack = direction.reshape(-1, *direction.shape[-2:])
    return stack.mT if stack.shape[-2] > stack.shape[-1] else stack


def _count(parameter: Tensor) -> int:
    return parameter.shape[0] if parameter.dim() == 3 else 1
