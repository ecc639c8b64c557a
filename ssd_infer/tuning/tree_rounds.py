"""What rounds of a drafted tree would win and cost, from the chance of every rank at every position of a text.

Under greedy decoding the target's text is emitted whatever the draft, so the rank that its token has in the draft's
scores, at every position, decides each round exactly; under sampling chances give expectations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ssd_infer.engine.laws import Law
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.tree_shape import Shape, by_level
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.tree_shapes import best_parents

RANKS = 6
"""Siblings that are looked at."""
BETTER = 1.02
"""How much faster than a chain a tree must be predicted to be."""
_DRAWS = 2
"""Times that siblings are drawn at a position under sampling."""


def rank_chances(reference: Tensor, draft: Tensor, sampler: Sampler, seed: int = 0) -> Tensor:
    """Return the chance `(n, R)` that a draft's r-th child is the accepted one, from its `(n, V)` logits.

    `reference` is what the target chooses, as `calibration_text.choices` has it: tokens `(n,)`, or distributions
    `(n, V)`. Bits under greedy decoding. Under sampling siblings are drawn without replacement, as a tree does.
    """
    ranks = min(RANKS, draft.shape[-1])
    if sampler.greedy:
        return (draft.topk(ranks, dim=-1).indices == reference.unsqueeze(-1)).float().cpu()
    generator = torch.Generator(draft.device).manual_seed(seed)
    p, q = reference, Law(sampler.probs(draft))
    total = torch.zeros((len(draft), ranks), device=draft.device)
    for _ in range(_DRAWS):
        total += _one_draw(p, q, ranks, generator)
    return (total / _DRAWS).cpu()


def _one_draw(p: Tensor, q: Law, ranks: int, generator: torch.Generator) -> Tensor:
    """Return the chance `(n, R)` of each of one set of siblings, by recursive rejection."""
    left, still = p, torch.ones(len(p), device=p.device)
    found = []
    for _ in range(ranks):
        there = q.probs.sum(dim=-1) > 0
        token = torch.multinomial(torch.where(there.unsqueeze(-1), q.probs, 1.0), 1, generator=generator)[
            :, 0
        ]
        chance = (left.gather(1, token.unsqueeze(1))[:, 0] / q.of(token)).clamp(max=1.0) * there
        found.append(still * chance.nan_to_num(0.0))
        still = still - found[-1]
        rest = q.left_of(left)
        mass = rest.sum(dim=-1, keepdim=True)
        left, q = torch.where(mass > 0, rest / mass, left), q.without(token)
    return torch.stack(found, dim=1)


def mean_shares(chances: Tensor) -> list[float]:
    """Return what chances `(…, R)` are in the mean by rank, made to fall, as `best_parents` takes them."""
    means = chances.flatten(0, -2).mean(dim=0).tolist()
    shares, last = [], 1.0
    for share in means:
        last = min(last, share)
        if last < 1e-4:
            break
        shares.append(round(last, 4))
    return shares or [1e-4]


def accepted_tokens(chances: Tensor, shape: Shape, *, greedy: bool) -> float:
    """Return the mean accepted tokens of a round with `shape`, along texts `(texts, n, R)`.

    Chances `(D, texts, n, R)` are those of drafts one to D deep, and deeper ones as the last, of a draft that is the
    worse the further it goes.
    """
    by_depth = chances.unsqueeze(0) if chances.dim() == 3 else chances
    if greedy:
        return _accepted_greedily(by_depth, _children(shape))
    return _expected(by_depth, shape)


def _children(shape: Shape) -> dict[tuple[int, int], int]:
    """Return the node that is the r-th child of another."""
    found: dict[tuple[int, int], int] = {}
    for above, level in pairwise(shape.levels):
        before = above.first
        for place, (owner, rank) in enumerate(zip(level.owners, level.ranks, strict=True)):
            found[before + owner, rank] = level.first + place
    return found


def _accepted_greedily(chances: Tensor, children: dict[tuple[int, int], int]) -> float:
    """Follow the rounds of greedy decoding along every text."""
    right = torch.where(chances.amax(dim=-1) > 0, chances.argmax(dim=-1), -1).tolist()
    deepest, length, rounds, accepted = len(right) - 1, chances.shape[2], 0, 0
    for text in range(chances.shape[1]):
        at = 0
        while at < length:
            depth, node = 0, children.get((0, right[0][text][at]))
            while node is not None:
                at, accepted, depth = at + 1, accepted + 1, min(depth + 1, deepest)
                node = children.get((node, right[depth][text][at])) if at < length else None
            rounds, at = rounds + 1, at + 1
    return accepted / max(rounds, 1)


def _expected(chances: Tensor, shape: Shape) -> float:
    """Return the mean, over all starts, of what the chances along each path add up to."""
    total, (deepest, texts, length, _) = 0.0, chances.shape
    before = [chances.new_ones((texts, length))]
    for depth, level in enumerate(shape.levels[1:]):
        width = length - depth
        if width <= 0:
            break
        here = chances[min(depth, deepest - 1), :, depth:]
        before = [
            before[owner][:, :width] * here[..., rank]
            for owner, rank in zip(level.owners, level.ranks, strict=True)
        ]
        total += float(sum(one.sum() for one in before)) / (texts * length)
    return total


@dataclass(frozen=True, slots=True)
class TreePrediction:
    """What one tree should give."""

    nodes: int
    depth: int
    tau: float
    speedup: float
    shares: tuple[float, ...]
    """Mean chances by rank, which shaped it."""

    def describe(self) -> str:
        """Say the prediction in a few words."""
        return f"trees of {self.nodes} nodes down to {self.depth}, τ {self.tau:.2f}, predicted {self.speedup:.2f}×"


def round_seconds(costs: Costs, shape: Shape, resume: int, beyond: float = 0.0) -> float:
    """Return the seconds of a round that drafts level by level, and verifies from layer `resume` on.

    The draft shares the layers before with the target. What it runs of later ones takes `beyond` seconds for one token.
    """
    seconds = 0.0
    for level in shape.levels:
        seconds += resume * costs.layer_at(level.width)
        if level.expanded:
            more = beyond * costs.layer_at(level.expanded) / costs.layer_at(1)
            seconds += costs.step_at(level.expanded) + more
    width = shape.tree.nodes + 1
    return seconds + costs.step_at(width) + (costs.num_layers - resume) * costs.layer_at(width)


def best_tree(
    chances: Tensor,
    costs: Costs,
    resume: int,
    budgets: Sequence[int],
    depths: Sequence[int],
    *,
    greedy: bool,
    beyond: float = 0.0,
) -> TreePrediction:
    """Return the tree of highest predicted speedup among `budgets` × `depths`: τ · plain / seconds of a round.

    `resume` and `beyond` are those of `round_seconds`.
    """
    shares, found = mean_shares(chances if chances.dim() == 3 else chances[0]), []
    for nodes in budgets:
        for depth in depths:
            parents = best_parents(shares, nodes, depth)
            shape = Shape(by_level(parents), torch.device("cpu"))
            tau = 1 + accepted_tokens(chances, shape, greedy=greedy)
            speedup = tau * costs.plain / round_seconds(costs, shape, resume, beyond)
            found.append(TreePrediction(nodes, depth, tau, speedup, tuple(shares)))
    return max(found, key=lambda one: one.speedup)
