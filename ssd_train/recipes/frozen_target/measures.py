"""What drafts are worth on held-out text: agreement, overlap, accept length, and the speedup that costs let expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ssd_train.losses.draft_rows import DraftSums
from ssd_train.recipes.base import Ratio
from ssd_train.recipes.causal import TAU_GAMMA
from ssd_train.recipes.frozen_target.forms import Drafted, chain
from ssd_train.recipes.frozen_target.trainee import Trainee

LONGEST = 8
"""Drafts of the longest round that is looked at."""
_WIDER = 0.03
"""What a verify pass costs more for each drafted token, as a share of a pass of one: measured on small models."""


def ratios(
    drafts: Sequence[Drafted], sums: Sequence[DraftSums], *, agreement: bool = True
) -> dict[str, Ratio]:
    """Return loss, overlap Σ min(p, q) and, where it was counted, agreement of each draft."""
    found: dict[str, Ratio] = {}
    for draft, one in zip(drafts, sums, strict=True):
        found[f"{draft.name}_loss"] = (one.loss, one.count)
        found[f"{draft.name}_overlap"] = (one.alpha, one.count)
        if agreement:
            found[f"{draft.name}_agreement"] = (one.match, one.count)
    return found


def lengths(
    drafts: Sequence[Drafted], matches: Tensor, row: Tensor, token: Tensor, *, chained: bool
) -> dict[str, Ratio]:
    """Return the simulated accept length of rounds of 1, 2, … drafts, of every module: `NAME_tau_GAMMA`."""
    alternatives = {drafts[0].module: matches} if chained else {}
    if not chained:
        alternatives = {draft.module: matches[at : at + 1] for at, draft in enumerate(drafts)}
    found: dict[str, Ratio] = {}
    for name, own in alternatives.items():
        for gamma in range(1, (len(own) if chained else LONGEST) + 1):
            found[f"{name}_tau_{gamma}"] = chain(own, row, token, gamma, chained=chained)
    return found


def relative_cost(trainee: Trainee, name: str) -> float:
    """Return c of a module, a draft against a pass of the target, by the weights each of them reads."""
    target, module = trainee.target.target, trainee.draft(name)
    layers = [sum(weight.numel() for weight in layer.parameters()) for layer in target.layers]
    head = trainee.target.head.weight
    own = sum(w.numel() for key, w in module.named_parameters() if key != "row_weight")
    once = max(1, module.spec.heads)  # of heads, each drafts one token of a round
    draft = sum(layers[: module.spec.exit_layer]) + own / once + len(trainee.ids()) * head.shape[1]
    return draft / (sum(layers) + head.numel())


def judged(metrics: Mapping[str, float], costs: Mapping[str, float]) -> dict[str, float]:
    """Return for each module `NAME_tau` (rounds of 4 drafts) and `NAME_speedup`, the best over lengths of rounds.

    Speedup = τ_γ / (γ c + v), v = 1 + 0.03 γ: what reading weights lets expect, to compare modules with.
    """
    found: dict[str, float] = {}
    for name, cost in costs.items():
        taus = dict(_taus(metrics, name))
        if not taus:
            continue
        found[f"{name}_tau"] = taus[max(gamma for gamma in taus if gamma <= TAU_GAMMA)]
        found[f"{name}_speedup"] = max(
            tau / (gamma * cost + 1 + _WIDER * gamma) for gamma, tau in taus.items()
        )
    return found


def _taus(metrics: Mapping[str, float], name: str) -> Iterator[tuple[int, float]]:
    for gamma in range(1, LONGEST + 1):
        tau = metrics.get(f"{name}_tau_{gamma}")
        if tau is not None:
            yield gamma, tau


@torch.no_grad()
def pooled(sums: Sequence[DraftSums], drafts: Sequence[Drafted]) -> Tensor:
    """Return the weighted loss of all drafts, summed over tokens, as training has it."""
    return torch.stack([one.loss * draft.weight for one, draft in zip(sums, drafts, strict=True)]).sum()
