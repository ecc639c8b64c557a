"""Draft head `lowrank`: a product of two small matrices looks over all of V, and the best m tokens are scored exactly.

W ≈ A·B is the best of its rank for the states at hand: of all matrices of rank r it has the least expected ‖Wx - ABx‖²
over states x with second moments C, by the eigenvectors of C^½ WᵀW C^½ (Eckart-Young; the candidate head of EAGLE-4 and
SlimSpec, arXiv 2605.10453, are trained ones). Costs V·r + r·d + m·d multiplications in place of V·d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.kernels.products import product
from ssd_infer.engine.laws import Scored
from ssd_infer.engine.target import Target

RANK = 64
_PIECE = 1 << 14
_LEAST = 1e-4
"""What every direction weighs at least, of the mean: few states say little of those they do not point to."""


@dataclass(frozen=True, slots=True)
class Preview:
    """`left` `(V, r)` times `right` `(r, d)`, about the head's weight."""

    left: Tensor
    right: Tensor


@torch.no_grad()
def preview_of(target: Target, moments: Tensor, rank: int = RANK) -> Preview:
    """Return the best preview of the head of `target` of `rank` for normed states with second `moments` `(d, d)`."""
    head: Any = target.head
    weight = head.weight.detach()
    size = weight.shape[1]
    exact = moments.to("cpu", torch.float64)
    exact = exact + _LEAST * exact.trace() / size * torch.eye(size, dtype=exact.dtype)
    values, vectors = torch.linalg.eigh(exact)
    root = (vectors * values.sqrt()) @ vectors.T
    inverse = (vectors / values.sqrt()) @ vectors.T
    chosen = torch.linalg.eigh(root @ _squares(weight) @ root).eigenvectors[:, -min(rank, size) :]
    left = weight @ (root @ chosen).to(weight.device, weight.dtype)
    return Preview(left.contiguous(), (chosen.T @ inverse).to(weight.device, weight.dtype).contiguous())


def _squares(weight: Tensor) -> Tensor:
    """Return WᵀW `(d, d)` in float64, of a few thousand rows at a time: weights may be of half precision, and many."""
    total = torch.zeros(weight.shape[1], weight.shape[1], dtype=torch.float64)
    for part in weight.split(_PIECE):
        single = part.float()
        total += (single.T @ single).cpu()
    return total


class LowRankHead(DraftHead):
    """Score the `most` tokens that a preview finds best, anew at every position."""

    kind = "lowrank"

    def __init__(self, target: Target, preview: Preview, most: int) -> None:
        """Look through `preview` at the head of `target`."""
        self.target, self.preview, self.most = target, preview, most

    def scores(self, hidden: Tensor) -> Scored:
        """Return the scores `(…, B, T, m)`, with ids of their own at every position."""
        head: Any = self.target.head
        normed = self.target.normed(hidden)
        rough = product(product(normed, self.preview.right), self.preview.left, head.bias)
        ids = rough.topk(self.most, dim=-1, sorted=False).indices
        exact = (head.weight[ids] @ normed.unsqueeze(-1)).squeeze(-1)
        if head.bias is not None:
            exact = exact + head.bias[ids]
        return Scored(self.target.leave(exact), ids)
