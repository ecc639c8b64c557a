"""Make a block's early predictions agree with its later ones, so that a model's own drafts are accepted.

Lossless decoding keeps a drafted token when the state that has revealed the tokens before it still predicts it. Two
ways to train for that, both towards a target that the model itself provides:

- `pair_divergence`: ½ KL(p‖q) + ½ KL(q‖p) between the predictions p with more and q with fewer tokens revealed, the
  gradient reaching both, so that the later state also learns to be predictable by the earlier one;
- cross-entropy of early states on the block the model itself decodes from the same context (certainty distillation, as
  in dParallel and d3LLM): exactly the drafts that will be verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_train.losses.masked import log_probabilities


@dataclass(slots=True)
class Agreement:
    """Sums over positions: the divergence to differentiate, and how many most likely tokens agree."""

    divergence: Tensor
    agreed: Tensor


def pair_divergence(
    early: Tensor, late: Tensor, weight: Tensor, mask_id: int, *, chunk_tokens: int = 1024
) -> Agreement:
    """Sum the symmetric KL between states `(N, d)` of the same positions under the head `(V, d)`."""
    divergence, agreed = early.new_zeros(()), torch.zeros((), dtype=torch.long, device=early.device)
    for fewer, more in zip(early.split(chunk_tokens), late.split(chunk_tokens), strict=True):
        logq, logp = log_probabilities(fewer, weight, mask_id), log_probabilities(more, weight, mask_id)
        gap = (logp - logq).masked_fill(torch.isinf(logp), 0.0)
        divergence = divergence + 0.5 * ((logp.exp() - logq.exp()) * gap).sum()
        agreed = agreed + (logp.argmax(-1) == logq.argmax(-1)).sum()
    return Agreement(divergence, agreed)


def verify_calls(predictions: Tensor, gamma: int) -> Tensor:
    """Return `(N,)` verify calls that decoding N blocks left to right takes with drafts of `gamma` tokens.

    `predictions` `(B, N, B)`: row k holds the most likely token of every place once the block's own first k tokens
    are revealed; the block itself is the diagonal. A call confirms the next token and each draft up to the first wrong.
    """
    size, blocks, _ = predictions.shape
    own = torch.stack([predictions[place, :, place] for place in range(size)], 1)
    reach = torch.zeros(size, blocks, dtype=torch.long, device=predictions.device)
    for place in range(size):
        right = predictions[place, :, place + 1 : place + 1 + gamma] == own[:, place + 1 : place + 1 + gamma]
        reach[place] = place + 1 + right.long().cumprod(1).sum(1)
    at, calls = torch.zeros(blocks, dtype=torch.long, device=own.device), torch.zeros_like(reach[0])
    for _ in range(size):
        open_ = at < size
        at = torch.where(open_, reach.gather(0, at.clamp(max=size - 1)[None])[0], at)
        calls += open_.long()
    return calls
