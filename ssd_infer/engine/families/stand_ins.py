"""What takes the place of a sublayer that a draft leaves out."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Nothing(nn.Module):
    """Stand in for a sublayer and contribute nothing to the residual stream."""

    zeros: ClassVar[dict[tuple[torch.dtype, torch.device], Tensor]] = {}

    def _zero(self, like: Tensor) -> Tensor:
        key = (like.dtype, like.device)
        found = self.zeros.get(key)
        if found is None:
            found = self.zeros[key] = torch.zeros(1, dtype=like.dtype, device=like.device)
        return found


class NoAttention(Nothing):
    """Attention that adds a zero `(1,)`."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Return a zero `(1,)`, and no probabilities."""
        return self._zero(hidden_states), None


class NoMlp(Nothing):
    """An MLP that adds a zero `(1,)`."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return a zero `(1,)`."""
        return self._zero(hidden_states)


class NoMixer(Nothing):
    """A mixer that adds a zero `(1,)` and remembers nothing."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return a zero `(1,)`."""
        return self._zero(hidden_states)


class Zeros(nn.Module):
    """An MLP that adds zeros of the shape of what comes in, for layers that write into them."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return zeros like `hidden_states` `(…, d)`."""
        return torch.zeros_like(hidden_states)


class ZerosOfTwo(nn.Module):
    """A routed block that adds zeros, with its router's choice beside them."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        """Return zeros like `hidden_states` `(…, d)`, and no choice."""
        return torch.zeros_like(hidden_states), None


class ResidualAttention(nn.Module):
    """Attention that is handed the residual stream and adds nothing to it."""

    def forward(self, hidden_states: Tensor, residual: Tensor, **_: Any) -> tuple[Tensor, None]:
        """Return `residual` `(B, T, d)`, and no probabilities."""
        del hidden_states
        return residual, None


class ResidualMlp(nn.Module):
    """An MLP that is handed the residual stream and adds nothing to it."""

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """Return `residual` `(B, T, d)`."""
        del hidden_states
        return residual


NO_ATTENTION, NO_MIXER, NO_MLP, NO_NORM = NoAttention(), NoMixer(), NoMlp(), nn.Identity()
ZEROS, ZEROS_OF_TWO = Zeros(), ZerosOfTwo()
RESIDUAL_ATTENTION, RESIDUAL_MLP = ResidualAttention(), ResidualMlp()
