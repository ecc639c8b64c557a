"""What verification costs by width, and how many nodes of a tree pay for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ssd_infer.engine.target import Target
from ssd_infer.tuning.costs import Costs, Curve, batch_class, measure_costs, measure_verify
from ssd_infer.tuning.memo import Memo

BUDGETS = (1, 4, 8, 16, 32)
"""Nodes a round that `auto` chooses from."""
TREE_WIDTHS = (1, 2, 3, 5, 9, 17, 33)
"""Tokens of a pass at which costs are measured where trees are considered."""


def most_nodes(tree: int | str) -> int:
    """Return the most nodes that `tree` may lead to."""
    return BUDGETS[-1] if isinstance(tree, str) else tree


_known: Memo[Costs] = Memo()
_curves: Memo[Curve] = Memo()


def cached_tree_costs(target: Target, context: int, do_sample: bool, batch: int = 1) -> Costs:
    """Return what passes cost on this model up to the widest tree, measured the first time they are asked for.

    Contexts are rounded up to powers of four, 256 at least, and batches to powers of two: costs change slowly.
    """
    context, batch = _rounded(context, batch)
    return _known.cached(
        target.model,
        (context, do_sample, batch),
        lambda: measure_costs(target, context, do_sample, batch=batch, widths=TREE_WIDTHS),
    )


def remember_tree_costs(
    target: Target, costs: Costs, context: int, do_sample: bool = False, batch: int = 1
) -> None:
    """Let trees of this model be chosen by `costs` from now on, as long as it is and runs as it does now."""
    context, batch = _rounded(context, batch)
    _known.put(target.model, (context, do_sample, batch), costs)


def cached_verify_curve(target: Target, context: int, do_sample: bool, batch: int = 1) -> Curve:
    """Return the seconds of a pass through the whole model, by its tokens a row.

    They are those of `cached_tree_costs` where these are known, and are measured by themselves otherwise.
    """
    context, batch = _rounded(context, batch)
    key = context, do_sample, batch
    costs = _known.get(target.model, key)
    if costs is None:
        return _curves.cached(
            target.model, key, lambda: measure_verify(target, context, do_sample, batch, TREE_WIDTHS)
        )
    return replace(costs.exit(0).verify, steep=True)


def best_count(worth: Sequence[Sequence[float]], seconds: Curve) -> int:
    """Return how many nodes a row to verify, given each row's chances of acceptance in falling order.

    The most tokens per second of the pass: a row emits one token and what is accepted, (1 + Σ worth) / v(n + 1).
    """
    width = max(map(len, worth))
    sums = [[0.0, *accumulate(row)] for row in worth]

    def rate(count: int) -> float:
        emitted = sum(1.0 + row[min(count, len(row) - 1)] for row in sums)
        return emitted / seconds(count + 1)

    return max(range(width + 1), key=rate)


def _rounded(context: int, batch: int) -> tuple[int, int]:
    """Return the context and batch that costs are measured at for these."""
    steps = max(0, context - 1).bit_length()
    return max(256, 1 << (steps + steps % 2)), batch_class(batch)
