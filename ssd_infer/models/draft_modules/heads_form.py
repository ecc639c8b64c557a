"""Form `heads`: blocks on the target's last state alone, each for a token further ahead (Medusa, arXiv 2401.10774)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssd_infer.engine.target import Target
from ssd_infer.models.draft_modules.module import DraftModule


class Ahead(nn.Module):
    """h + U silu(V norm h) for each of K tokens ahead, U zero at the start."""

    def __init__(self, target: Target, heads: int, rank: int) -> None:
        """Make `heads` blocks of `rank` for states of `target`."""
        super().__init__()
        like, size = next(target.embedding.parameters()), int(target.config.hidden_size)
        placed: Any = {"device": like.device, "dtype": like.dtype}
        self.norm = copy.deepcopy(target.norm)
        self.down = nn.Linear(size, heads * rank, bias=False, **placed)
        self.up = nn.Parameter(torch.zeros((heads, rank, size), **placed))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return states `(K, B, T, d)` for states `(B, T, d)`."""
        return torch.stack([self.one(hidden, at) for at in range(len(self.up))])

    def one(self, hidden: Tensor, at: int) -> Tensor:
        """Return states `(B, T, d)` of the block `at` alone."""
        rank = self.up.shape[1]
        inner = functional.linear(self.norm(hidden), self.down.weight[at * rank : (at + 1) * rank])
        added: Tensor = functional.silu(inner) @ self.up[at]
        return hidden + added


class HeadsModule(DraftModule):
    """The target's last state → a state for each of the tokens after the next; none knows what the others say."""

    body: Ahead

    def make_body(self, target: Target) -> nn.Module:
        """Return the blocks."""
        return Ahead(target, self.spec.heads, self.spec.rank)

    @property
    def thin(self) -> bool:
        """Nothing is attended to."""
        return True

    def over_block(self, states: Tensor, positional: dict[str, Any] | None = None) -> list[Tensor]:
        """Return normed states `(B, T, d)` of each block, of the target's last ones before its norm `(B, T, d)`.

        Row t of the k-th predicts token t+1+k.
        """
        del positional
        return [self.norm(found) for found in self.body(states)]
