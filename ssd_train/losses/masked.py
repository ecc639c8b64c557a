"""The negative log-likelihood of masked tokens, a chunk of logits at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def masked_nll(
    hidden: Tensor, weight: Tensor, targets: Tensor, mask_id: int, *, chunk_tokens: int = 1024
) -> Tensor:
    """Return `(N,)` −log p(target) of states `(N, d)` under the head `(V, d)`, in float32 or better.

    The mask token gets no probability (the SUBS parameterisation of MDLM, arXiv 2406.07524): unmasked positions never
    come here, so their loss is zero. Chunks beyond the first are recomputed in the backward pass instead of kept.
    """
    if hidden.shape[0] <= chunk_tokens:
        return _nll(hidden, weight, targets, mask_id)
    parts = [
        checkpoint(_nll, states, weight, wanted, mask_id, use_reentrant=False)
        for states, wanted in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    ]
    return torch.cat(parts)


def log_probabilities(hidden: Tensor, weight: Tensor, mask_id: int) -> Tensor:
    """Return `(N, V)` log-probabilities in float32 or better, the mask token at −∞."""
    logits = hidden @ weight.to(hidden.dtype).t()
    precise = logits if logits.dtype == torch.float64 else logits.float()
    forbidden = torch.zeros_like(precise[:1])
    forbidden[:, mask_id] = -torch.inf
    return (precise + forbidden).log_softmax(-1)


def _nll(hidden: Tensor, weight: Tensor, targets: Tensor, mask_id: int) -> Tensor:
    return -log_probabilities(hidden, weight, mask_id).gather(1, targets[:, None])[:, 0]
