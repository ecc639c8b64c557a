"""Route a token to fewer experts than its model would, or only to experts at hand."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ssd_infer.offload.layout import top_k_of

Renorm = Literal["model", "full_mass"]
Routing = tuple[Tensor, Tensor, Tensor]
"""Router logits, weights `(N, k)` and expert indices `(N, k)`."""


_CONSTANT_SUM = ("Mixtral", "Qwen3_5Moe", "GraniteMoe", "GptOss", "MiniMaxM2", "Gemma4")
"""Beginnings of the names of routers that always rescale what they chose."""


def all_weights(gate: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and the weight of every expert `(N, E)`, ordered by expert, of a `gate` whose k is E."""
    logits, weights, index = gate(hidden)
    return logits, torch.zeros_like(weights).scatter_(1, index, weights)


def ranked(gate: nn.Module, top_k: int) -> nn.Module:
    """Return a shallow copy of `gate` that picks `top_k` experts: weights are shared, hooks stay with the original."""
    view = copy.copy(gate)
    view.__dict__ |= {"_forward_hooks": OrderedDict(), "_forward_pre_hooks": OrderedDict()}
    if hasattr(gate, "top_k"):
        view.__dict__["top_k"] = top_k
    else:
        config = view.__dict__["config"] = copy.copy(cast(Any, gate).config)
        config.top_k_experts = top_k
    return view


def normalises(gate: nn.Module) -> bool:
    """Tell whether the router rescales the chosen weights to a constant sum."""
    flag = getattr(gate, "norm_topk_prob", None)
    return type(gate).__name__.startswith(_CONSTANT_SUM) if flag is None else bool(flag)


def choose(
    weights: Tensor, top_k: int, k_draft: int, renorm: Renorm, normalised: bool, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return weights and indices `(N, k_draft)` of the best experts, among `allowed` `(E,)` or `(N, E)` only.

    `weights` `(N, E)` are those of a router of k = E. A normalising router keeps its constant sum. Otherwise the kept
    weights stay as they are (`model`), or are scaled to the mass of the full top-k (`full_mass`).
    """
    ranking = weights if allowed is None else weights.masked_fill(~allowed, -1.0)
    picked, index = ranking.topk(k_draft, dim=-1)
    picked = picked.clamp_min(0.0)  # fewer allowed experts than k_draft: the rest weigh nothing
    if normalised:
        picked = picked * (weights.sum(-1, keepdim=True) / _sum(picked))
    elif renorm == "full_mass":
        full = weights.topk(top_k, dim=-1).values
        picked = picked * (full.sum(-1, keepdim=True) / _sum(picked))
    return picked, index


def _sum(picked: Tensor) -> Tensor:
    return picked.sum(-1, keepdim=True).clamp_min(torch.finfo(picked.dtype).tiny)


class ReducedRouter(nn.Module):
    """A router of a draft: shares the target's gate and sends every token to `k_draft` experts.

    `at_hand` returns the experts `(E,)` the draft may use without waiting, or None for all; `listener` hears the k
    experts that the full router would have used, `(N, k)`, which is what verification will need.
    """

    def __init__(
        self,
        gate: nn.Module,
        num_experts: int,
        k_draft: int,
        renorm: Renorm = "model",
        at_hand: Callable[[], Tensor | None] | None = None,
        listener: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Take shallow copies of `gate`, one for each number of experts asked of it."""
        super().__init__()
        self.top_k, self.num_experts, self.k_draft = top_k_of(gate), num_experts, k_draft
        self.normalised = normalises(gate)
        self.renorm: Renorm = "model" if self.normalised else renorm
        self.at_hand, self.listener = at_hand, listener
        self._gates = {k: ranked(gate, k) for k in (k_draft, self.top_k, num_experts)}
        """The gate by how many experts it picks; a plain dictionary, so that its weights are counted once."""

    def forward(self, hidden_states: Tensor, *more: Tensor) -> Routing:
        """Route `(…, d)` hidden states; the family's own top-k, which may want `more`, says what it can."""
        if self.at_hand is not None:
            return self._from_memory(hidden_states, self.at_hand())
        full: Routing | None = None
        if self.listener is not None or self.renorm == "full_mass":
            full = self._gates[self.top_k](hidden_states, *more)
        if self.listener is not None and full is not None:
            self.listener(full[2])
        logits, picked, index = self._gates[self.k_draft](hidden_states, *more)
        if self.renorm == "full_mass" and full is not None:
            picked = picked * (full[1].sum(-1, keepdim=True) / _sum(picked))
        return logits, picked, index

    def _from_memory(self, hidden_states: Tensor, allowed: Tensor | None) -> Routing:
        """Choose among `allowed` `(E,)`; one call of the gate tells both what to use and what the full router would."""
        logits, weights = all_weights(self._gates[self.num_experts], hidden_states)
        if self.listener is not None:
            self.listener(weights.topk(self.top_k, dim=-1).indices)
        chosen = choose(weights, self.top_k, self.k_draft, self.renorm, self.normalised, allowed)
        return logits, *chosen
