"""What a router is trained for besides the text: even load, and consecutive tokens that share experts."""

from __future__ import annotations

import torch
from torch import Tensor


def load_balance(probs: Tensor, load: Tensor) -> Tensor:
    """Return E·Σ_e f_e·P_e of one layer, a scalar; 1 when the load is even (Switch Transformer, arXiv 2101.03961).

    `probs` `(N, E)` are the router's softmax, `load` `(E,)` the share of all choices that went to each expert, which
    may count more tokens than these: with the loads of all processes the sum over processes is that of one. Layers
    are never pooled: one collapsed layer cannot hide among the others.
    """
    return probs.shape[1] * torch.dot(load.to(probs.dtype), probs.mean(0))


def expert_choices(index: Tensor, num_experts: int) -> Tensor:
    """Return how many of the choices in `index` `(N, k)` went to each expert, int64 `(E,)`."""
    return torch.bincount(index.reshape(-1), minlength=num_experts)


def expert_load(choices: Tensor) -> Tensor:
    """Return the share of `choices` `(…, E)` that went to each expert, in float32."""
    return choices.float() / choices.sum(-1, keepdim=True)


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
