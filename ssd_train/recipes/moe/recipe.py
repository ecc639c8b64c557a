"""Mixture of experts: the model with fewer experts a token, or with those at hand, learns to draft for itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ssd_infer.strategies.reduced_experts.routing import Renorm
from ssd_infer.strategies.reduced_experts.union import membership, recent_experts, union_size
from ssd_train.config.schema import Root
from ssd_train.losses.chunked import ExitTerm
from ssd_train.losses.routing import (
    expected_union,
    expert_choices,
    expert_load,
    load_balance,
    routing_entropy,
)
from ssd_train.models import build as models
from ssd_train.recipes.base import Batch, Ratio, StepContext, StepOutput
from ssd_train.recipes.causal import CausalRecipe
from ssd_train.recipes.moe.model_check import check_model
from ssd_train.recipes.moe.routers import Heard, Routers
from ssd_train.recipes.moe.settings import MoeConfig

WINDOWS = (2, 4, 8)
"""Window lengths T whose U(T) is logged."""
_STREAM = 0x5EED


class MoeRecipe(CausalRecipe):
    """Train a mixture-of-experts model whose reduced self is a good draft of it."""

    name = "moe"
    routers: Routers

    def __init__(self, config: MoeConfig) -> None:
        """Keep the settings."""
        self.config = config
        self.renorm = cast(Renorm, config.renorm)  # one of the two, by the rules of the configuration
        self.chunk_tokens = config.chunk_tokens

    def check(self, cfg: Root) -> None:
        """Check that the model routes, to as many experts as a draft may take; raises SSDError."""
        check_model(models.check(cfg), self.config)

    def prepare(self, model: nn.Module) -> None:
        """Find head and routers; raises UnsupportedModelError for a dense model."""
        super().prepare(model)
        model_type = str(model.config.model_type)  # type: ignore[union-attr]
        self.routers = Routers(self.exits.layers, model_type)

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the summed loss of the full model, of one random draft of it, and of the routers."""
        settings, denom, shape = self.config, self.denominator(inputs), inputs["input_ids"].shape
        with self.routers.listening() as heard:
            states = self.states(model, inputs, [])
        drafts = settings.ce_weight > 0 or settings.kl_weight > 0
        if drafts:
            k_draft, held = self.draw(context)
            with self.routers.reduced(k_draft, self.renorm, self.at_hand(heard, shape, held)):
                states.exits = [self.states(model, inputs, []).final]
        exits = [self.term()] if drafts else []
        sums = self.loss(states, exits, final_weight=1.0, detach_head=False, detailed=context.detailed)
        loads = self.loads(heard, over_ranks=context.distributed)
        balance, union = self.router_terms(heard, loads, shape)
        per_token = settings.balance_weight * balance + settings.overlap_weight * union
        terms: dict[str, Ratio] = {
            "final_loss": (sums.final, denom),
            "balance": (balance.detach() * denom, denom),
            "expected_union": (union.detach() * denom, denom),
        }
        for nll, divergences in zip(sums.cross_entropy, sums.divergence, strict=True):
            terms |= {"draft_loss": (nll, denom)}
            terms |= {f"draft_{name}": (value, denom) for name, value in divergences.items()}
        metrics = _spread(heard, loads, denom) if context.detailed else {}
        if sums.agreed:
            metrics["draft_agreement"] = (sums.agreed[0], denom)
        return StepOutput(sums.total + per_token * denom, denom, metrics, terms)

    def draw(self, context: StepContext) -> tuple[int, int]:
        """Return k_draft and how many experts of a layer the draft has at hand, from the step and seed alone."""
        random = np.random.default_rng([context.seed, context.global_step, 0, _STREAM])
        options = self.config.k_draft or list(range(1, self.routers.top_k + 1))
        share = float(random.choice(self.config.at_hand))
        held = max(1, round(share * self.routers.num_experts))
        fitting = [k for k in options if k <= held] or [held]
        return int(random.choice(fitting)), held

    def at_hand(self, heard: list[Heard], shape: torch.Size, held: int) -> list[Tensor] | None:
        """Return for each layer the experts `(N, E)` a cache of `held` would hold while a draft runs; None for all."""
        experts = self.routers.num_experts
        if held >= experts:
            return None
        block = self.config.block
        return [
            recent_experts(membership(part.index.view(*shape, -1), experts), block, held).view(-1, experts)
            for part in heard
        ]

    def term(self) -> ExitTerm:
        """Return the loss of the draft: cross-entropy and divergence from the full model."""
        settings = self.config
        both = ("forward", "reverse") if settings.kl_direction == "both" else (settings.kl_direction,)
        factor = settings.kl_weight / len(both)
        parts = tuple((name, factor, not settings.detach_teacher) for name in both)
        return ExitTerm(settings.ce_weight, parts if settings.kl_weight > 0 else ())

    def loads(self, heard: list[Heard], *, over_ranks: bool = False) -> Tensor:
        """Return the share `(layers, E)` of all choices that went to each expert, those of all processes together.

        A batch is balanced as a whole, not in each process's part of it (arXiv 2501.11873).
        """
        choices = torch.stack([expert_choices(part.index, self.routers.num_experts) for part in heard])
        if over_ranks:
            torch.distributed.all_reduce(choices)
        return expert_load(choices)

    def router_terms(self, heard: list[Heard], loads: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Return balance (1 when even) and expected union over k, means over layers."""
        top_k, window = self.routers.top_k, self.config.overlap_window
        balances = [load_balance(part.probs, load) for part, load in zip(heard, loads, strict=True)]
        balance = torch.stack(balances).mean()
        unions = [expected_union(part.probs.view(*shape, -1), top_k, window) for part in heard]
        return balance, torch.stack(unions).mean()

    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure loss, what drafts of every k_draft would be worth, U(T) and the load of every layer."""
        with torch.no_grad():
            with self.routers.listening() as heard:
                states = self.states(model, inputs, [])
            for k_draft in self.measured():
                with self.routers.reduced(k_draft, self.renorm):
                    states.exits.append(self.states(model, inputs, []).final)
        drafts = self.draft_metrics(states, inputs, [f"draft_k{k_draft}" for k_draft in self.measured()])
        count = drafts["loss"][1]
        metrics = {"loss": drafts["loss"], **_spread(heard, self.loads(heard), count), **drafts}
        metrics["tau_sim"] = metrics[f"draft_k{self.measured()[-1]}_tau"]
        return metrics | self._unions(heard, inputs["input_ids"].shape, count)

    def measured(self) -> list[int]:
        """Return the k_draft measured on validation data: top-1 and half."""
        return sorted({1, max(1, self.routers.top_k // 2)})

    def _unions(self, heard: list[Heard], shape: torch.Size, count: Tensor) -> dict[str, Ratio]:
        used = [membership(part.index.view(*shape, -1), self.routers.num_experts) for part in heard]
        fitting = [window for window in WINDOWS if window <= shape[1]]
        mean = {w: torch.stack([union_size(layer, w) for layer in used]).mean() for w in fitting}
        return {f"union_{window}": (value * count, count) for window, value in mean.items()}

    def metadata(self) -> dict[str, Any]:
        """Return the recipe's name and settings."""
        return {"name": self.name, "settings": asdict(self.config)}


def _spread(heard: list[Heard], loads: Tensor, count: Tensor) -> dict[str, Ratio]:
    """Return each layer's highest expert load (1 when even) and routing entropy; a pooled loss hides collapse."""
    found: dict[str, Ratio] = {}
    for place, (part, load) in enumerate(zip(heard, loads, strict=True)):
        peak = load.max() * len(load)
        found[f"router_{place}_peak_load"] = (peak * count, count)
        found[f"router_{place}_entropy"] = (routing_entropy(part.probs.detach()) * count, count)
    return found
