"""The hybrid loss of speech recognition: CTC at the end and between layers of the encoder, cross-entropy behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HybridWeights:
    """λ and w of `L = λ·[(1−w)·CTC + w·interCTC] + (1−λ)·CE` (arXiv 1609.06773, 2102.03216)."""

    ctc: float = 0.3
    """λ."""
    inter: float = 0.3
    """w, shared by the intermediate layers."""


def hybrid_loss(
    final: Tensor, inter: Sequence[Tensor], cross_entropy: Tensor, weights: HybridWeights
) -> Tensor:
    """Return the weighted sum of sums over the same utterances.

    All terms come as sums and are divided by one denominator later, so λ weighs like with like. Without intermediate
    terms their weight falls to the final one.
    """
    share = weights.inter if inter else 0.0
    ctc = (1 - share) * final
    for term in inter:
        ctc = ctc + share / len(inter) * term
    return weights.ctc * ctc + (1 - weights.ctc) * cross_entropy
