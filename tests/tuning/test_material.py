"""Scores are what decoding then accepts; scratch passes leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.sublayers import SkipSet, side_by_side, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers.branches import look_back
from ssd_infer.tuning.calibration_text import CalibrationSet, Scores, gather, write_calibration_set
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.prediction import predict
from ssd_infer.tuning.sublayer_costs import SublayerCosts
from tests.conftest import FAMILIES, ModelFactory
from tests.engine.test_exactness import prompts
from tests.strategies.skip_layers.test_dp import flat_costs

SKIPS = SkipSet.of([1, 2], [2])


@pytest.fixture(params=FAMILIES)
def material(request: pytest.FixtureRequest, tiny_model: ModelFactory) -> Iterator[CalibrationSet]:
    """Ragged material of every family."""
    changes = {"sliding_window": 16} if request.param == "mistral" else {}
    model = tiny_model(request.param, initializer_range=0.1, vocab_size=29, **changes)
    yield write_calibration_set(
        Target.of(model), [row.tolist() for row in prompts(4, 29)], SamplingParams(), 33
    )
    del model  # a target holds its model weakly


def test_the_full_model_agrees_with_itself(material: CalibrationSet) -> None:
    assert material.score(material.target.layers).mean == 1.0
    text = [row.tokens[row.prompt_length + 1 :] for row in material.session.rows]
    assert material.reference.tolist() == text


def test_position_scores_are_what_single_drafts_win(material: CalibrationSet) -> None:
    """With γ = 1 every draft is a first draft: simulated and real acceptance are the same numbers."""
    scores = material.score(skip_view(material.target, SKIPS))
    rows = [row.tokens[: row.prompt_length] for row in material.session.rows]
    params = {
        "skip_attention": sorted(SKIPS.attention),
        "skip_mlp": sorted(SKIPS.mlp),
        "gamma": 1,
        "confidence": 0.0,
    }
    out = ssd_infer.generate(
        material.target.model, rows, draft="skip_set", draft_params=params, max_new_tokens=33
    )
    prediction = predict(scores, SKIPS, flat_costs(4), True, [1], [0.0])
    assert 0 < out.stats.total.accepted < out.stats.total.drafted
    assert out.stats.total.tau == pytest.approx(prediction.tau, abs=0.02)


def test_scratch_passes_write_nothing(material: CalibrationSet) -> None:
    cache = material.session.cache
    before = [tensor.clone() for tensor in cache._keys + cache._values if tensor is not None]
    material.score(skip_view(material.target, SKIPS))
    after = [tensor for tensor in cache._keys + cache._values if tensor is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("own", ["diagonal", "causal"])
def test_scratch_logits_equal_a_written_pass(tiny_model: ModelFactory, own: Any) -> None:
    """A causal scratch pass is an ordinary pass over the same keys; for the full model so is a diagonal one."""
    model = tiny_model()
    target = Target.of(model)
    material = write_calibration_set(target, [[2, 3, 4, 5], [6, 7, 8]], SamplingParams(), 9)
    again = gather(material.session, material.starts, 8, own)
    view = target.layers if own == "diagonal" else skip_view(target, SKIPS)
    with torch.inference_mode():
        from ssd_infer.tuning.scratch import ScratchCache

        found = []
        for window, cache in (
            (again.window(), ScratchCache(again.session.cache)),
            (again.session.window_at(again.starts, 8), again.session.cache),
        ):
            found.append(target.run(target.embed_at(again.ids, window, cache), window, cache, layers=view))
        scratch, written = found
    assert torch.allclose(scratch, written, atol=1e-5)


def test_sampling_scores_are_overlaps(tiny_model: ModelFactory) -> None:
    model = tiny_model(initializer_range=0.1)
    target = Target.of(model)
    material = write_calibration_set(target, [[2, 3, 4]], SamplingParams(do_sample=True, top_p=0.9), 9)
    scores = material.score(skip_view(target, SKIPS))
    assert ((scores.acceptance > 0) & (scores.acceptance <= 1 + 1e-5)).all()
    assert scores.mean < 1
    assert material.score(target.layers).mean == pytest.approx(1.0, abs=1e-5)


def scores_of(bits: list[float], confidence: list[float]) -> Scores:
    return Scores(torch.tensor([bits]), torch.tensor([confidence]))


def test_rounds_by_hand() -> None:
    bits, sure = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0.9] * 6
    costs = flat_costs(2)
    prediction = predict(scores_of(bits, sure), SkipSet(), costs, True, [2], [0.0])
    assert (prediction.tau, prediction.drafted) == (pytest.approx(2.0), pytest.approx((2 + 2 + 1) / 3))
    doubts = [0.9, 0.1, 0.9, 0.9, 0.9, 0.9]  # the second token is appended, nothing after it
    prediction = predict(scores_of(bits, doubts), SkipSet(), costs, True, [6], [0.5])
    assert prediction.drafted == pytest.approx((2 + 3 + 1) / 3)


def test_sampling_rounds_are_expectations() -> None:
    scores = scores_of([0.5] * 400, [0.9] * 400)
    prediction = predict(scores, SkipSet(), flat_costs(2), False, [2], [0.0])
    assert prediction.tau == pytest.approx(1 + 0.5 + 0.25, abs=0.01)


def test_costs_add_up() -> None:
    costs = flat_costs(4, attention=2.0, mlp=3.0, step=4.0)
    assert costs.whole.plain == 24.0
    assert costs.draft(SkipSet.of([0, 1], [1, 2, 3])) == 4.0 + 3.0 + 0.0 + 2.0 + 2.0
    assert costs.skipping(SkipSet()).c == 1.0
    assert costs.skipping(SkipSet()).v(5) == 1.0
    wide = SublayerCosts(Costs((1, 17), (1.0, 2.0), (0.0, 0.0), 4), 0.5, 0.5)
    assert wide.skipping(SkipSet.of([0], [])).v(16) == 2.0
    assert wide.skipping(SkipSet.of([3], [2])).v(16) == (2 * 1.0 + 2 * 2.0) / 4


@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
def test_states_between_sublayers_end_where_the_model_does(tiny_model: ModelFactory, family: str) -> None:
    """Also where attention and MLP are handed one state, so that running one after the other would go elsewhere."""
    model = tiny_model(family)
    target = Target.of(model)
    assert (side_by_side(target) is None) == (family == "llama")
    material = write_calibration_set(target, [[2, 3, 4, 5], [6, 7, 8]], SamplingParams(), 9)
    found, states = look_back(material.session, 8)
    assert len(states) == 2 * target.num_layers + 1
    expected = gather(material.session, found.starts, 8)
    assert torch.equal(found.reference, expected.reference)
