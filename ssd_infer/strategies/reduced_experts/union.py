"""U(T): how many different experts of a layer T consecutive tokens need together."""

from __future__ import annotations

import torch
from torch import Tensor


def membership(index: Tensor, num_experts: int) -> Tensor:
    """Return which experts each token uses, bool `(…, T, E)`, from indices `(…, T, k)`."""
    used = torch.zeros((*index.shape[:-1], num_experts), dtype=torch.bool, device=index.device)
    return used.scatter_(-1, index, value=True)


def union_size(used: Tensor, window: int) -> Tensor:
    """Return the mean size of the union over all windows of `window` tokens of `used` `(…, T, E)`, a scalar."""
    together = used.unfold(-2, window, 1).any(-1)
    return together.sum(-1).float().mean()


def overlap(used: Tensor) -> float:
    """Return ρ, the mean share of a token's experts that the token before it used too; `used` `(…, T, E)`."""
    both = (used[..., 1:, :] & used[..., :-1, :]).sum(-1).float()
    return float((both / used[..., 1:, :].sum(-1)).mean())


def recent_experts(used: Tensor, block: int, keep: int) -> Tensor:
    """Return the experts `(B, T, E)` at hand when each block of tokens begins, as a cache of `keep` would hold them.

    `used` `(B, T, E)`. Those most used in the block before are kept, ties by expert number; the first block may use
    all. `keep` ≥ E allows everything.
    """
    batch, length, experts = used.shape
    if keep >= experts:
        return torch.ones_like(used)
    blocks = -(-length // block)
    padded = torch.nn.functional.pad(used.to(torch.float32), (0, 0, 0, blocks * block - length))
    counts = padded.reshape(batch, blocks, block, experts).sum(2)
    best = counts[:, :-1].topk(keep, dim=-1).indices
    held = torch.zeros((batch, blocks - 1, experts), dtype=torch.bool, device=used.device)
    held.scatter_(-1, best, value=True)
    first = torch.ones((batch, 1, experts), dtype=torch.bool, device=used.device)
    return torch.cat([first, held], 1).repeat_interleave(block, dim=1)[:, :length]
