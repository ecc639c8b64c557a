"""Shapes of trees: the best one by enumeration, its levels, and what is predicted of it is what happens."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

import ssd_infer
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_shape import Shape, by_level
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.early_exit.exit_calibration import profile
from ssd_infer.strategies.early_exit.exit_trees import exit_chances
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.tree_costs import (
    BUDGETS,
    TREE_WIDTHS,
    best_count,
    cached_tree_costs,
    cached_verify_curve,
    remember_tree_costs,
)
from ssd_infer.tuning.tree_rounds import accepted_tokens, best_tree, mean_shares, rank_chances
from ssd_infer.tuning.tree_shapes import best_parents, shares_problems
from tests.conftest import build_model
from tests.engine.test_exactness import prompts

CPU = torch.device("cpu")


def value(parents: list[int], shares: list[float], depth: int) -> float | None:
    """Return what a tree has accepted in the mean; None where it is too deep or too wide."""
    chances, depths, used = [1.0], [0], [0]
    for parent in parents:
        rank = used[parent]
        if rank >= len(shares) or depths[parent] >= depth:
            return None
        used[parent] += 1
        used.append(0)
        depths.append(depths[parent] + 1)
        chances.append(chances[parent] * shares[rank])
    return sum(chances) - 1


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("shares", [[0.5, 0.2, 0.1], [0.9, 0.05], [0.3, 0.3, 0.3]])
def test_no_tree_is_better(shares: list[float], depth: int) -> None:
    for nodes in range(1, 7):
        every = itertools.product(*(range(node) for node in range(1, nodes + 1)))
        values = [found for tree in every if (found := value(list(tree), shares, depth)) is not None]
        best = best_parents(shares, nodes, depth)
        found = value(best, shares, depth)
        assert found is not None
        if values:
            assert len(best) == nodes
            assert found == pytest.approx(max(values))
        assert value(by_level(best), shares, depth) == pytest.approx(found)


def test_levels_stand_one_after_another_with_parents_first() -> None:
    shape = Shape(by_level(best_parents([0.6, 0.2, 0.1], 12, 4)), CPU)
    assert [level.first for level in shape.levels] == list(
        itertools.accumulate([0, *(level.width for level in shape.levels[:-1])])
    )
    assert sum(level.width for level in shape.levels) == 13
    assert shape.levels[-1].expanded == 0
    cut = shape.until(2)
    assert cut.tree.parent_lists[0] == shape.tree.parent_lists[0][: cut.tree.nodes]
    assert cut.levels[2].expanded == 0
    assert shape.until(9) is shape
    with pytest.raises(ValueError, match="level after level"):
        Shape([0, 1, 0], CPU)
    with pytest.raises(ValueError, match="come first"):
        Shape([0, 0, 2], CPU)


@cache
def known_model() -> tuple[Target, list[list[int]], object]:
    """Return a model, prompts, and it itself, which must stay alive."""
    model = build_model(layers=4, vocab_size=61)
    return Target.of(model), [row.tolist() for row in prompts(8, 61)], model


def test_what_is_predicted_of_greedy_rounds_happens() -> None:
    target, rows, model = known_model()
    costs = Costs((1,), (1.0,), (1.0,), 4)
    known = profile(target, rows, new_tokens=48, costs=costs)
    chances = exit_chances(target, known, 3)
    for nodes, depth in ((4, 2), (9, 4), (20, 5)):
        shares = mean_shares(chances)
        shape = Shape(by_level(best_parents(shares, nodes, depth)), CPU)
        told = accepted_tokens(chances, shape, greedy=True)
        params = {"exit_layer": 3, "gamma": depth, "tree": nodes, "shares": shares}
        found = ssd_infer.generate(
            model, rows, draft="early_exit", draft_params=params, max_new_tokens=48
        ).stats.total
        assert found.accepted / found.rounds == pytest.approx(told, rel=0.02)


def test_what_is_predicted_of_sampled_rounds_happens() -> None:
    """Expectations leave out that a refused token makes another text; many rows come near them."""
    target, rows, model = known_model()
    costs = Costs((1,), (1.0,), (1.0,), 4)
    known = profile(target, rows, do_sample=True, new_tokens=48, costs=costs)
    chances = exit_chances(target, known, 3)
    shares = mean_shares(chances)
    shape = Shape(by_level(best_parents(shares, 9, 3)), CPU)
    told = accepted_tokens(chances, shape, greedy=False)
    params = {"exit_layer": 3, "gamma": 3, "tree": 9, "shares": shares}
    found = ssd_infer.generate(
        model, rows * 6, draft="early_exit", draft_params=params, max_new_tokens=48, do_sample=True, seed=1
    ).stats.total
    assert found.accepted / found.rounds == pytest.approx(told, rel=0.15)


def test_chances_of_ranks_add_up_to_those_of_any() -> None:
    draw = torch.Generator().manual_seed(0)
    final, early = torch.randn(200, 6, generator=draw), torch.randn(200, 6, generator=draw)
    greedy = rank_chances(final.argmax(-1), early, Sampler(SamplingParams(), CPU))
    assert greedy.sum(dim=1).tolist() == [1.0] * 200
    sampled = rank_chances(final.softmax(-1), early, Sampler(SamplingParams(do_sample=True), CPU, 0))
    assert bool((sampled >= 0).all())
    assert bool((sampled.sum(dim=1) <= 1 + 1e-4).all())
    first = torch.minimum(final.softmax(-1), early.softmax(-1)).sum(-1)
    assert float(sampled[:, 0].mean()) == pytest.approx(float(first.mean()), abs=0.05)


def test_wide_verification_that_costs_much_leaves_a_small_tree() -> None:
    draw = torch.Generator().manual_seed(0)
    hits = torch.zeros(4, 60, 4)
    ranks = torch.multinomial(torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]), 240, replacement=True, generator=draw)
    for at, rank in enumerate(ranks.tolist()):
        if rank < 4:
            hits[at // 60, at % 60, rank] = 1.0
    flat = Costs(TREE_WIDTHS, (1.0,) * 7, (0.5,) * 7, 8)
    steep = Costs(TREE_WIDTHS, tuple(float(width) for width in TREE_WIDTHS), (0.5,) * 7, 8)
    found = [best_tree(hits, costs, 2, BUDGETS, range(1, 9), greedy=True).nodes for costs in (flat, steep)]
    assert found[0] >= 16
    assert found[1] == 1


def test_copies_are_verified_as_far_as_they_pay() -> None:
    target, _, _ = known_model()
    curve = cached_verify_curve(target, 40, do_sample=False)
    assert curve.at == TREE_WIDTHS
    assert best_count([[0.9, 0.8, 0.7]], type(curve)((1, 33), (1.0, 1.0))) == 3
    assert best_count([[0.9, 0.8, 1e-6], []], type(curve)((1, 33), (1.0, 9.0))) == 2
    assert best_count([[0.1]], type(curve)((1, 33), (1.0, 33.0))) == 0
    assert best_count([[], []], curve) == 0


@pytest.mark.parametrize(("asked", "known"), [(1, 256), (256, 256), (257, 1024), (1500, 4096)])
def test_costs_of_near_contexts_are_measured_once(asked: int, known: int) -> None:
    model = build_model(layers=2)
    target = Target.of(model)
    told = Costs((1, 33), (1.0, 2.0), (1.0, 2.0), 2)
    measured = cached_verify_curve(target, asked, do_sample=False)
    assert measured.at == TREE_WIDTHS
    assert list(measured.seconds) == sorted(measured.seconds)
    assert cached_verify_curve(target, known, do_sample=False) is measured
    remember_tree_costs(target, told, known)
    assert cached_tree_costs(target, asked, do_sample=False) is told
    assert cached_verify_curve(target, asked, do_sample=False).seconds == (3.0, 6.0)


def test_shares_that_are_none_are_refused() -> None:
    for wrong in ([], [0.2, 0.3], [0.5, 0.0], [0.9, 0.2]):
        assert shares_problems(wrong)[0].key == "draft_params.shares"
    assert shares_problems([0.5, 0.5]) == shares_problems(None) == []


def test_a_tree_of_no_node_is_refused() -> None:
    _, rows, model = known_model()
    params = {"exit_layer": 2, "gamma": 2, "tree": 0}
    with pytest.raises(ConfigError, match=r"draft_params.tree: must be >= 1"):
        ssd_infer.generate(model, rows[:1], draft="early_exit", draft_params=params, max_new_tokens=4)


@pytest.mark.parametrize("do_sample", [False, True])
def test_auto_chooses_a_tree_or_a_chain_and_stays_exact(do_sample: bool) -> None:
    _, rows, model = known_model()
    for given in ({"tree": "auto"}, {"tree": 8}, {"tree": "auto", "exit_layer": 3}, {"tree": 6, "gamma": 3}):
        out = ssd_infer.generate(
            model,
            rows,
            draft="early_exit",
            draft_params=given,
            max_new_tokens=12,
            do_sample=do_sample,
            seed=0,
        )
        if out.draft is None:
            assert "plain decoding" in out.note
            continue
        # A chain, which `auto` may choose, is the default and goes unsaid.
        assert isinstance(out.draft_params.get("tree", 1), int)
        if not do_sample:
            plain = ssd_infer.generate(model, rows, max_new_tokens=12)
            assert out.sequences == plain.sequences
