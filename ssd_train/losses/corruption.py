"""What every masked-diffusion objective returns: which tokens to hide, and how much each hidden one counts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Corruption:
    """A noised batch: `masked` bool `(B, L)` and the factor `weight` `(B, L)` of −log p at each masked position."""

    masked: Tensor
    weight: Tensor


def per_block(values: Tensor, length: int) -> Tensor:
    """Return `(B, L)` from a value for each block `(B, K)`; K must divide L."""
    return values.repeat_interleave(length // values.shape[1], dim=1)
