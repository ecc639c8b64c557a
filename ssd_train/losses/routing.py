"""What a router is trained for besides the text: even load, and consecutive tokens that share experts."""

from __future__ import annotations

import torch
from torch import Tensor


def load_balance(probs: Tensor, index: Tensor) -> Tensor:
    """Return E·Σ_e f_e·P_e of one layer, a scalar; k when the load is even (Switch Transformer, arXiv 2101.03961).

    `probs` `(N, E)` are the router's softmax, `index` `(N, k)` the experts it chose; f_e counts the k choices of a
    token separately, as transformers does, but never pools layers: one collapsed layer cannot hide among the others.
    """
    share = expert_load(index, probs.shape[1]).to(probs.dtype) * index.shape[1]
    return probs.shape[1] * torch.dot(share, probs.mean(0))


def expert_load(index: Tensor, num_experts: int) -> Tensor:
    """Return the share `(E,)` of all choices in `index` `(N, k)` that went to each expert, in float32."""
    counts = torch.bincount(index.reshape(-1), minlength=num_experts)
    return counts.float() / index.numel()


def expected_union(probs: Tensor, top_k: int, window: int) -> Tensor:
    """Return the expected experts that `window` consecutive tokens need together, over k: a smooth U(T)/k, a scalar.

    `probs` `(B, T, E)`. Token t is taken to include expert e with probability a = 1 - (1 - p)^k, as if its k experts
    were drawn; the union has E - Σ_e Π_t (1 - a_te) members. Windows do not overlap; a shorter tail is left out.
    """
    batch, length, experts = probs.shape
    window = min(window, length)
    whole = length // window * window
    miss = torch.log1p(-probs.clamp(max=1 - 1e-6)) * top_k
    survive = miss[:, :whole].reshape(batch, whole // window, window, experts).sum(2).exp()
    return (experts - survive.sum(-1)).mean() / top_k


def routing_entropy(probs: Tensor) -> Tensor:
    """Return the mean entropy in nats of the routing distributions `(N, E)`, a scalar."""
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(-1).mean()
