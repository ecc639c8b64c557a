"""A draft that loses is stopped while decoding, and a small predicted gain is measured before it is believed."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest
from torch import Tensor

import ssd_infer
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers import skip_calibration as calibration
from ssd_infer.strategies.skip_layers.guard import PAUSE, TRUST_AFTER, GainGuard
from ssd_infer.strategies.skip_layers.search_result import SearchResult
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.skip_layers.skip_set import SkipSetDrafter
from ssd_infer.tuning import race
from ssd_infer.tuning.race import least_running, measured_speedup
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import remember_costs
from tests.conftest import ModelFactory
from tests.engine.test_exactness import prompts, reference
from tests.strategies.skip_layers.test_dp import flat_costs

SKIPS = SkipSet.of([1, 2], [1, 2])
EVERYTHING = {"skip_attention": [0, 1, 2, 3], "skip_mlp": [0, 1, 2, 3], "gamma": 4, "confidence": 0.0}


def prediction(speedup: float) -> Prediction:
    return Prediction(3, 0.0, 0.8, 3.4, 3.0, 0.4, 1.1, speedup)


def test_a_losing_draft_pauses_and_each_pause_is_twice_as_long() -> None:
    guard = GainGuard(flat_costs(4, step=0.0), SKIPS, least=1.0)
    plain = []
    for _ in range(3):
        for _ in range(TRUST_AFTER):
            assert guard.drafts()
            guard.learn(0.0, 4.0)
        waited = 0
        while not guard.drafts():
            waited += 1
        plain.append(waited)
    assert plain == [PAUSE, 2 * PAUSE, 4 * PAUSE]
    assert guard.report()["stopped"] == 3
    assert guard.report()["rounds_without_draft"] == sum(plain)
    assert "drafting was stopped" in guard.report()["note"]


def test_a_gaining_draft_goes_on_and_the_running_speedup_is_its_own() -> None:
    guard = GainGuard(flat_costs(4, step=0.0), SKIPS, least=1.0)
    for _ in range(100):
        guard.learn(3.0, 4.0)
        assert guard.drafts()
    assert guard.speedup == pytest.approx(4 / (4 * 0.5 + 1))
    assert guard.report()["note"] == ""


def test_unlucky_rounds_of_long_drafts_are_no_loss() -> None:
    """Of drafts worth 2x some rounds win nothing; a draft that never wins is stopped at once."""
    costs = flat_costs(4, step=0.0)
    rare, never = GainGuard(costs, SKIPS, least=1.0), GainGuard(costs, SKIPS, least=1.0)
    for accepted in (0.0, 0.0, 8.0, 0.0, 8.0, 0.0, 8.0, 0.0):
        rare.learn(accepted, 8.0)
        never.learn(0.0, 8.0)
    assert rare.speedup is not None
    assert rare.speedup < 1.0
    assert (rare.report()["stopped"], never.report()["stopped"]) == (0, 1)
    for _ in range(150):
        rare.learn(0.5, 8.0)
    assert rare.report()["stopped"] >= 1


def test_a_higher_bar_stops_a_small_gain() -> None:
    assert least_running(predicted=1.2, measured=1.0) == pytest.approx(1.2)
    assert least_running(predicted=1.0, measured=1.4) == 1.0
    guard = GainGuard(flat_costs(4, step=0.0), SKIPS, least=1.5)
    for _ in range(TRUST_AFTER):
        guard.learn(3.0, 4.0)
    assert guard.report()["stopped"] == 1


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_stream_that_loses_is_decoded_plainly(tiny_model: ModelFactory, batch: int, sampled: bool) -> None:
    model, rows = tiny_model(), prompts(batch, 97)
    for size in (1, 8):
        remember_costs(Target.of(model), flat_costs(4, step=4.0), sampled, size)
    drafted = {}
    for guard in (0, 1.0):
        out = ssd_infer.generate(
            model,
            rows,
            draft="skip_set",
            draft_params=EVERYTHING | {"guard": guard},
            max_new_tokens=60,
            do_sample=sampled,
            top_k=90,
            seed=1,
        )
        drafted[guard] = out.stats.total.forwards["draft"]
        if not sampled:
            assert out.sequences == reference(model, rows, 60)
        assert ("stopped" in out.stats.report) == bool(guard)
    assert drafted[1.0] >= 4 * TRUST_AFTER
    assert drafted[1.0] < drafted[0] / 2
    assert out.stats.report["stopped"] >= 1


def resolved(model: Any, raced: float, predicted: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[str] = []
    target = Target.of(model)

    def measure(_target: Any, strategy: Any, *_: Any) -> float:
        asked.append(strategy.info.name)
        return raced

    monkeypatch.setattr(calibration, "measured_speedup", measure)
    calibration.remember(target, SearchResult(SKIPS, prediction(predicted), "dp", 1.0, 3))
    found = calibration.resolve_skip_set(SkipSetDrafter, target, SkipSetParams(), [[2, 3]], False)
    return found, asked


def test_a_race_decides_about_small_gains(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    lost, asked = resolved(model, 0.95, 1.2, monkeypatch)
    assert (lost.params, asked) == (None, ["skip_set"])
    assert "plain decoding: measured 0.95×" in lost.note
    assert (lost.search["raced_speedup"], lost.search["method"]) == (0.95, "dp")
    won, asked = resolved(model, 1.1, 1.32, monkeypatch)
    assert (won.params.guard, len(asked)) == (1.2, 1)
    assert "measured 1.10×" in won.note


def test_a_large_gain_needs_no_race(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = resolved(tiny_model(), 0.5, race.SURE, monkeypatch)
    assert (found.params.guard, asked) == (1.0, [])


def test_a_race_measures_and_remembers(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = SkipSetDrafter.step, []

    def slow(self: SkipSetDrafter, token: Tensor, offset: int) -> Tensor:
        calls.append(offset)
        time.sleep(0.01)
        return original(self, token, offset)

    monkeypatch.setattr(SkipSetDrafter, "step", slow)
    monkeypatch.setattr(race, "SECONDS", 0.0)
    model, params = tiny_model(), SkipSetParams([1], [1], 4, 0.0)
    target = Target.of(model)
    first = measured_speedup(target, SkipSetDrafter, params, [[2, 3, 4]], False)
    assert first < 0.8
    seen = len(calls)
    assert measured_speedup(target, SkipSetDrafter, params, [[2, 3, 4]], False) == first
    assert len(calls) == seen


def test_a_bad_guard_is_named(tiny_model: ModelFactory) -> None:
    for draft in ("skip_set", "early_exit+del"):
        with pytest.raises(ssd_infer.errors.ConfigError, match=r"draft_params\.guard"):
            ssd_infer.generate(
                tiny_model(), [[2, 3]], draft=draft, draft_params={"guard": -1.0}, max_new_tokens=4
            )


def test_contenders_begin_in_turn_and_all_seconds_count(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []

    def decoded(turn: int, contender: int) -> float:
        order.append(contender)
        return [6.0, 2.0, 3.0][contender] if turn == 2 else [1.0, 1.25, 1.0][contender]

    timed = race._timed(2, 3, decoded)
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert timed == [(1.0, 1.25, 1.0), (6.0, 2.0, 3.0)]
    monkeypatch.setattr(race, "_timed", lambda *_: timed)
    model, params = tiny_model(), SkipSetParams([1], [1], 4, 0.0)
    target = Target.of(model)
    speeds = race.raced_speedups(target, SkipSetDrafter, [params, params], [[2]], False, 2)
    assert speeds == pytest.approx([7 / 3.25, 7 / 4])
    monkeypatch.setattr(race, "_timed", lambda *_: [row[:2] for row in timed])
    assert measured_speedup(target, SkipSetDrafter, params, [[2]], False) == pytest.approx(median([0.8, 3]))
