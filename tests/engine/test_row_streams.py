"""A sampled row depends on its seed, its place and its prompt, and on no other row; no number decides twice."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import ssd_infer
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.engine.uniforms import Purpose, Uniforms
from ssd_infer.strategies.sparse_attention.sparse_calibration import draft_length_controller
from ssd_infer.strategies.sparse_attention.sparse_params import SparseAttentionParams
from tests.conftest import build_model

ROWS = [[5, 6, 7, 5, 6, 7, 5], [9, 8], [3, 4, 3, 4, 3], [11, 12, 13, 14]]
OTHERS = [[2, 2, 2, 2, 2, 2, 2, 2, 2], [40], [30, 31, 32], [6, 5, 4]]
ALONE: dict[str, dict[str, Any]] = {
    "plain": {},
    "early_exit": {"draft": "early_exit", "draft_params": {"exit_layer": 2, "gamma": 4}},
    "confident": {"draft": "early_exit", "draft_params": {"exit_layer": 2, "gamma": 4, "confidence": 0.15}},
    "tree": {"draft": "early_exit", "draft_params": {"exit_layer": 2, "gamma": 3, "tree": 8}},
    "confident tree": {
        "draft": "early_exit",
        "draft_params": {"exit_layer": 2, "gamma": 3, "tree": 8, "confidence": 0.1},
    },
    "ngram": {"draft": "ngram", "draft_params": {"gamma": 3}},
    "skipping tree": {
        "draft": "skip_set",
        "draft_params": {
            "skip_mlp": [1],
            "skip_attention": [2],
            "gamma": 3,
            "confidence": 0.05,
            "guard": 0.0,
            "tree": 8,
        },
    },
    "ngram tree": {"draft": "ngram", "draft_params": {"gamma": 3, "tree": 7}},
    "skip_set": {
        "draft": "skip_set",
        "draft_params": {
            "skip_mlp": [1],
            "skip_attention": [2],
            "gamma": 3,
            "confidence": 0.15,
            "adapt": False,
            "guard": 0.0,
        },
    },
}
"""Drafts whose rows decide nothing for each other."""
TOGETHER: dict[str, dict[str, Any]] = {
    "sparse": {
        "draft": "sparse_attention",
        "draft_params": {"selector": "streaming", "ratio": 0.5, "min_budget": 4, "gamma": 3},
    },
    "adapting": {
        "draft": "skip_set",
        "draft_params": {"skip_mlp": [1], "skip_attention": [2], "gamma": 3, "confidence": 0.3, "aim": 0.5},
    },
    "copies": {"draft": "early_exit+ngram", "draft_params": {"exit_layer": 2, "gamma": 3}},
    "copies beside": {
        "draft": "early_exit+ngram",
        "draft_params": {"exit_layer": 2, "gamma": 3, "tree": 8},
    },
    "as many nodes as pay": {"draft": "ngram", "draft_params": {"gamma": 3, "tree": "auto"}},
    "balanced": {
        "draft": "sparse_attention",
        "draft_params": {
            "selector": "pillar",
            "ratio": 0.5,
            "min_budget": 4,
            "gamma": 3,
            "phases": "balanced",
        },
    },
}
"""Drafts whose rows share decisions."""


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a model in float64: rounding differs with the shape of a batch, and must not decide here."""
    return build_model(layers=4).double()


def decoded(model: Any, rows: list[list[int]], name: str, **more: Any) -> list[list[int]]:
    """Sample 20 tokens a row under one seed."""
    settings: dict[str, Any] = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.8, "seed": 7}
    return ssd_infer.generate(model, rows, **settings | {**ALONE, **TOGETHER}[name] | more).sequences


@pytest.mark.parametrize("name", ALONE)
def test_a_row_does_not_depend_on_its_mates(model: Any, name: str) -> None:
    together = decoded(model, ROWS, name)
    assert len({tuple(row) for row in together}) == len(ROWS)
    for place in range(len(ROWS)):
        mates = [*OTHERS[:place], ROWS[place], *OTHERS[place + 1 :]]
        assert decoded(model, mates, name)[place] == together[place], "other mates"
        assert decoded(model, ROWS[: place + 1], name)[place] == together[place], "fewer mates"
    assert decoded(model, ROWS[:1], name)[0] == together[0], "alone"


@pytest.mark.parametrize("name", ALONE)
def test_nor_on_when_they_end(model: Any, name: str) -> None:
    free = decoded(model, ROWS, name)
    ends = [free[1][2], free[3][9]]
    found = decoded(model, ROWS, name, eos_token_id=ends)
    assert len({len(row) for row in found}) > 1
    for row, whole in zip(found, free, strict=True):
        end = next((i for i, token in enumerate(whole) if token in ends), len(whole) - 1)
        # Drafts near an end are cut off by it, not by the budget, and the budget's own cut is at the 20th token.
        assert row == whole[: end + 1]


@pytest.mark.parametrize("name", ["plain", "early_exit"])
def test_equal_prompts_draw_different_numbers(model: Any, name: str) -> None:
    assert len({tuple(row) for row in decoded(model, [ROWS[0]] * 6, name)}) == 6


@pytest.mark.parametrize("name", [*ALONE, *TOGETHER])
def test_no_number_is_used_twice(model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    real = Uniforms.take

    def recorded(self: Uniforms, *arguments: Any, **more: Any) -> Any:
        found = real(self, *arguments, **more)
        taken.extend(found.reshape(-1).tolist())
        return found

    decoded(model, ROWS, name, max_new_tokens=2)  # passes that `auto` measures decode nothing
    monkeypatch.setattr(Uniforms, "take", recorded)
    decoded(model, ROWS, name, max_new_tokens=40)
    assert len(taken) >= 4 * 40
    assert len(set(taken)) == len(taken)


def test_numbers_are_uniform_and_independent() -> None:
    uniforms = Uniforms(11)
    found = []
    for position in range(40):
        uniforms.begin(range(25), [position] * 25)
        parts = [uniforms.take(purpose, (25, 4)) for purpose in Purpose] + [
            uniforms.take(Purpose.DRAFT, (25, 4))
        ]
        found.append(np.stack(parts))
    table = np.stack(found)  # position, call, row, place
    assert table.min() >= 0
    assert table.max() < 1
    assert kstest(table.reshape(-1), "uniform").pvalue > 1e-3
    for axis in range(4):
        lines = np.moveaxis(table, axis, 0)
        pairs = np.corrcoef(lines[:-1].reshape(-1), lines[1:].reshape(-1))[0, 1]
        assert abs(pairs) < 4 / np.sqrt(lines[1:].size)


def test_numbers_do_not_depend_on_how_many_are_taken() -> None:
    def taken(rows: list[int], width: int, draws: int) -> Any:
        uniforms = Uniforms(3)
        uniforms.begin(rows, [5] * len(rows))
        for _ in range(draws):
            uniforms.take(Purpose.DRAFT, (len(rows),))
        return uniforms.take(Purpose.ACCEPT, (len(rows), width)), uniforms.take(Purpose.FOLLOW, (len(rows),))

    few, many = taken([2], 3, 3), taken([0, 1, 2, 3], 6, 6)
    assert np.array_equal(few[0][0], many[0][2, :3])
    assert few[1][0] == many[1][2]


def test_a_round_of_other_rows_is_an_error() -> None:
    sampler = Sampler(SamplingParams(do_sample=True), torch.device("cpu"), 0)
    sampler.begin([0, 1], [0, 0])
    with pytest.raises(ValueError, match="this round has 2 rows"):
        sampler.draw(torch.ones(3, 5))


def test_a_token_without_a_chance_is_never_drawn() -> None:
    sampler = Sampler(SamplingParams(do_sample=True), torch.device("cpu"), 0)
    probs = torch.zeros(4000, 9)
    probs[:, 2], probs[:, 5] = 1e-7, 1.0
    probs[:, 7] = 0.5
    drawn = sampler.draw(probs)
    assert set(drawn.tolist()) <= {2, 5, 7}
    assert abs((drawn == 7).float().mean() - 1 / 3) < 0.03


@pytest.mark.parametrize("bad", [float("nan"), 0.0, float("inf")])
def test_what_is_no_distribution_is_an_error(bad: float) -> None:
    sampler = Sampler(SamplingParams(do_sample=True), torch.device("cpu"), 0)
    with pytest.raises(ValueError, match="a distribution to draw from"):
        sampler.draw(torch.full((2, 5), bad))


def test_a_seed_of_any_size_counts() -> None:
    drawn = {
        tuple(Uniforms(seed).take(Purpose.DRAFT, (4,)).tolist()) for seed in (0, 1, 2**32, 2**62, 2**63 - 1)
    }
    assert len(drawn) == 5


def test_a_decoding_leaves_nothing_for_the_next(model: Any) -> None:
    """An adapting draft starts from the same estimate however often it ran."""
    params = SparseAttentionParams("streaming", 0.5, 4, 3, "dense", adapt=True)
    target = Target.of(model)
    before = draft_length_controller(target, params, [7]).shares
    for _ in range(2):
        out = ssd_infer.generate(
            model, [ROWS[0]], draft="sparse_attention", draft_params=asdict(params), max_new_tokens=24
        )
        assert "shares" in out.stats.report
        assert draft_length_controller(target, params, [7]).shares == before


@pytest.mark.parametrize("name", ["plain", "early_exit", "confident", "ngram", "skip_set", "copies"])
def test_a_prompt_decoded_again_is_decoded_alike(model: Any, name: str) -> None:
    first = decoded(model, ROWS, name)
    decoded(model, OTHERS, name)
    assert decoded(model, ROWS, name) == first
