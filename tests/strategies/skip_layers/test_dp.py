"""The dynamic program against brute force, its limits, and the whole search on small models."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers.branches import Branches, look_back
from ssd_infer.strategies.skip_layers.dp import plan, search_dp
from ssd_infer.strategies.skip_layers.polish import polish
from ssd_infer.tuning.calibration_text import write_calibration_set
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import SublayerCosts
from tests.conftest import FAMILIES, ModelFactory
from tests.engine.test_exactness import prompts


def flat_costs(layers: int, attention: float = 1.0, mlp: float = 1.0, step: float = 1.0) -> SublayerCosts:
    """Return costs where a layer is the sum of its sublayers and wider passes cost the same."""
    whole = Costs((1, 17), (attention + mlp,) * 2, (step,) * 2, layers)
    return SublayerCosts(whole, attention, mlp)


def orthogonal(count: int, seed: int = 0) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return a start and full states whose updates are orthogonal and do not depend on the input."""
    sizes = torch.rand(count, generator=torch.Generator().manual_seed(seed)) + 0.1
    start = torch.zeros(1, count + 1)
    start[0, 0] = 1.0
    updates = torch.cat([torch.zeros(count, 1), torch.diag(sizes)], dim=1)
    full = [start + updates[: i + 1].sum(dim=0) for i in range(count)]
    return start, full, updates


def final_cosine(start: Tensor, full: list[Tensor], updates: Tensor, skipped: tuple[int, ...]) -> float:
    kept = [i for i in range(len(updates)) if i not in skipped]
    return float(torch.cosine_similarity(start + updates[kept].sum(dim=0), full[-1], dim=-1).mean())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weights", [[1] * 8, [1, 2] * 4, [3, 1, 1, 2, 1, 3, 2, 1]])
def test_orthogonal_updates_give_the_brute_force_optimum(seed: int, weights: list[int]) -> None:
    start, full, updates = orthogonal(8, seed)
    capacity = sum(weights) // 2
    paths = plan(start, full, lambda i, states: states + updates[i], weights, capacity, least_cosine=-1.0)
    subsets = [s for size in range(9) for s in itertools.combinations(range(8), size)]
    for path in paths:
        weight = sum(weights[i] for i in path.skipped)
        rivals = [s for s in subsets if sum(weights[i] for i in s) == weight]
        best = max(final_cosine(start, full, updates, rival) for rival in rivals)
        assert final_cosine(start, full, updates, path.skipped) == pytest.approx(best, abs=1e-6)
    found = [sum(weights[i] for i in path.skipped) for path in paths]
    assert found == list(range(capacity + 1))


def test_the_state_of_a_path_is_what_its_sublayers_make() -> None:
    start, full, updates = orthogonal(6)
    for path in plan(start, full, lambda i, states: states + updates[i], [1] * 6, 3):
        kept = [i for i in range(6) if i not in path.skipped]
        assert torch.allclose(path.state, start + updates[kept].sum(dim=0))


def test_fixed_sublayers_are_never_skipped() -> None:
    start, full, updates = orthogonal(6)
    fixed = frozenset({0, 5})
    paths = plan(start, full, lambda i, states: states + updates[i], [1] * 6, 6, fixed, least_cosine=-1.0)
    assert [len(path.skipped) for path in paths] == [0, 1, 2, 3, 4]
    assert all(not fixed & set(path.skipped) for path in paths)


def test_pruning_everything_leaves_the_full_model() -> None:
    start, full, updates = orthogonal(5)
    paths = plan(start, full, lambda i, states: states + updates[i], [1] * 5, 5, least_cosine=0.999999)
    assert [path.skipped for path in paths] == [()]


def test_weights_follow_the_latencies() -> None:
    assert flat_costs(4, attention=3.1, mlp=1.0).weights == (3, 1)
    assert flat_costs(4, attention=1.0, mlp=90.0).weights == (1, 5)


@pytest.mark.parametrize("name", FAMILIES)
def test_branches_reproduce_the_full_model_and_its_views(tiny_model: ModelFactory, name: str) -> None:
    changes = {"sliding_window": 16} if name == "mistral" else {}
    model = tiny_model(name, initializer_range=0.1, **changes)
    target = Target.of(model)
    rows = [row.tolist() for row in prompts(3, 97)]
    material = write_calibration_set(target, rows, SamplingParams(), 13)
    with torch.inference_mode():
        branches = Branches(material)
        start, full = branches.full_states()
        assert (target.logits(full[-1]).argmax(-1) == material.reference).all()
        paths = plan(start, full, branches.keep, [1, 2] * 4, 6, least_cosine=-1.0)
        for path in paths[1:]:
            skips = SkipSet.from_bits([index in path.skipped for index in range(8)])
            scores = material.score(skip_view(target, skips))
            assert material.compare(target.logits(path.state)).mean == pytest.approx(scores.mean)


def test_looking_back_gives_the_full_models_states(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target = Target.of(model)
    session = write_calibration_set(target, [[2, 3, 4, 5], [6, 7]], SamplingParams(), 12).session
    material, states = look_back(session, 8)
    assert len(states) == 9
    assert material.reference.tolist() == [
        row.tokens[length - 7 : length + 1] for row, length in zip(session.rows, session.lengths, strict=True)
    ]


def test_search_finds_dead_sublayers(tiny_model: ModelFactory) -> None:
    """Sublayers that add nothing are skipped, and acceptance stays 1."""
    model = tiny_model(layers=6)
    with torch.no_grad():
        for index in (1, 3):
            model.model.layers[index].self_attn.o_proj.weight.zero_()
        for index in (2, 3, 4):
            model.model.layers[index].mlp.down_proj.weight.zero_()
    rows = [row.tolist() for row in prompts(4, 97)]
    material = write_calibration_set(Target.of(model), rows, SamplingParams(), 25)
    found = search_dp(material, flat_costs(6))
    assert {1, 3} <= found.skips.attention
    assert {2, 3, 4} <= found.skips.mlp
    assert found.prediction.speedup > 1.0
    assert found.method == "dp"


def test_early_exits_compete(tiny_model: ModelFactory) -> None:
    """With silent layers after the second, leaving all of them out is free, the last one included."""
    model = tiny_model(layers=6)
    with torch.no_grad():
        for layer in model.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    rows = [row.tolist() for row in prompts(4, 97)]
    material = write_calibration_set(Target.of(model), rows, SamplingParams(), 25)
    found = search_dp(material, flat_costs(6), polishing=0.0)
    assert set(range(2, 6)) <= found.skips.attention & found.skips.mlp


class Table:
    """Judge sets by a made-up value: skipping sublayer i is worth `gains[i]`."""

    def __init__(self, gains: list[float]) -> None:
        self.gains = gains
        self.known: dict[SkipSet, Prediction] = {}
        self.prediction(SkipSet())

    def prediction(self, skips: SkipSet) -> Prediction:
        value = 1.0 + sum(
            g for g, bit in zip(self.gains, skips.bits(len(self.gains) // 2), strict=True) if bit
        )
        return self.known.setdefault(skips, Prediction(1, 0.0, 1.0, 2.0, 1.0, 0.5, 1.0, value))

    @property
    def best(self) -> tuple[SkipSet, Prediction]:
        return max(self.known.items(), key=lambda item: item[1].speedup)


def test_polishing_takes_every_flip_that_helps() -> None:
    gains = [0.1, -0.2, 0.3, -0.1, 0.05, 0.0]
    judge: Any = Table(gains)
    assert polish(judge, 3, seconds=60.0) == 3
    assert judge.best[0].bits(3) == [gain > 0 for gain in gains]
    untouched: Any = Table(gains)
    assert polish(untouched, 3, seconds=0.0) == 0
