"""Bookkeeping, isolation, calibration and refusals of the decode core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.stats import RowStats
from ssd_infer.engine.target import Target
from ssd_infer.errors import CheckpointError, ConfigError, UnsupportedModelError
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.early_exit.exit_calibration import THRESHOLDS, ExitProfile, profile, remember
from ssd_infer.tuning.costs import Costs, Curve, RoundCosts
from ssd_infer.tuning.rounds import draft_limits, expected_rounds, greedy_rounds
from tests.conftest import ModelFactory, build_model
from tests.engine.test_exactness import prompts, reference

EXIT2 = {"exit_layer": 2, "gamma": 4}


def test_statistics_follow_the_definitions() -> None:
    row = RowStats()
    row.count(drafted=4, accepted=4, emitted=5)
    row.count(drafted=4, accepted=1, emitted=2)
    row.count(drafted=0, accepted=0, emitted=1)
    assert (row.alpha, row.tau) == (5 / 8, 5 / 3 + 1)
    assert row.histogram == [1, 1, 0, 0, 1]
    assert row.per_position_drafted == [2, 2, 1, 1]
    assert row.per_position_accepted == [2, 1, 1, 1]


def test_totals_are_sums_of_rows(tiny_model: ModelFactory) -> None:
    out = ssd_infer.generate(
        tiny_model(), prompts(5, 97), draft="early_exit", draft_params=EXIT2, max_new_tokens=20
    )
    total, rows = out.stats.total, out.stats.rows
    assert total.drafted == sum(row.drafted for row in rows)
    assert total.emitted == sum(row.emitted for row in rows) == 100
    assert sum(total.histogram) == total.rounds
    assert set(total.seconds) == {"prefill", "draft", "verify"}
    assert all(seconds > 0 for seconds in total.seconds.values())


def test_parameters_and_config_stay_untouched_after_an_exception(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model().train()
    before, config = {k: v.clone() for k, v in model.state_dict().items()}, model.config.to_dict()

    def broken(self: EarlyExit, limit: int) -> Any:
        raise RuntimeError("drafting broke")

    monkeypatch.setattr(EarlyExit, "propose", broken)
    with pytest.raises(RuntimeError, match="drafting broke"):
        ssd_infer.generate(model, prompts(2, 97), draft="early_exit", draft_params=EXIT2, max_new_tokens=8)
    assert model.training
    assert model.config.to_dict() == config
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_generations_interleaved_on_one_model_do_not_interact(tiny_model: ModelFactory) -> None:
    model, rows = tiny_model(), prompts(2, 97)
    expected = reference(model, rows, 16)
    inner: list[list[int]] = []

    def nested(_row: int, _tokens: list[int]) -> None:
        if not inner:
            inner.extend(
                ssd_infer.generate(
                    model, rows[1:], draft="early_exit", draft_params=EXIT2, max_new_tokens=16
                ).sequences
            )

    outer = ssd_infer.generate(
        model, rows[:1], draft="early_exit", draft_params=EXIT2, max_new_tokens=16, streamer=nested
    )
    assert outer.sequences + inner == expected


def test_streamed_blocks_join_to_the_output(tiny_model: ModelFactory) -> None:
    streamed: dict[int, list[int]] = {0: [], 1: [], 2: []}
    out = ssd_infer.generate(
        tiny_model(),
        prompts(3, 97),
        draft="early_exit",
        draft_params=EXIT2,
        max_new_tokens=16,
        streamer=lambda row, tokens: streamed[row].extend(tokens),
    )
    assert list(streamed.values()) == out.sequences


def test_transformers_streamer(tiny_model: ModelFactory) -> None:
    class Collect:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    collect = Collect()
    row = prompts(1, 97)
    out = ssd_infer.generate(tiny_model(), row, max_new_tokens=6, streamer=collect)
    assert (collect.tokens, collect.ended) == (row[0].tolist() + out.sequences[0], True)


def test_early_layers_are_not_run_twice(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    calls = {"early": 0, "late": 0}
    model.model.layers[0].register_forward_hook(lambda *_: calls.update(early=calls["early"] + 1))
    model.model.layers[3].register_forward_hook(lambda *_: calls.update(late=calls["late"] + 1))
    Target.of(model)
    calls.update(early=0, late=0)
    out = ssd_infer.generate(model, prompts(1, 97), draft="early_exit", draft_params=EXIT2, max_new_tokens=24)
    forwards = out.stats.total.forwards
    assert calls["late"] == forwards["target"]
    drafting_rounds = forwards["target"] - 1
    assert calls["early"] - forwards["draft"] - 1 in (drafting_rounds, drafting_rounds - 1)


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"exit_layer": 4}, "draft_params.exit_layer"),
        ({"exit_layer": 0}, "draft_params.exit_layer"),
        ({"gamma": 0}, "draft_params.gamma"),
        ({"gamma": "many"}, "draft_params.gamma"),
        ({"gama": 3}, "draft_params.gama"),
        ({"confidence": 1.5}, "draft_params.confidence"),
    ],
)
def test_bad_draft_params_name_the_key(tiny_model: ModelFactory, params: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ssd_infer.generate(tiny_model(), [[2, 3]], draft="early_exit", draft_params=params, max_new_tokens=4)


def test_bad_arguments_are_reported_together(tiny_model: ModelFactory) -> None:
    with pytest.raises(ConfigError) as caught:
        ssd_infer.generate(
            tiny_model(), [[2], []], max_new_tokens=0, do_sample=True, temperature=0.0, top_p=2.0
        )
    assert {problem.key for problem in caught.value.problems} == {
        "input_ids[1]",
        "max_new_tokens",
        "temperature",
        "top_p",
    }


def test_foreign_token_ids_are_refused(tiny_model: ModelFactory) -> None:
    with pytest.raises(ConfigError, match="vocabulary of 97"):
        ssd_infer.generate(tiny_model(), [[2, 97]], max_new_tokens=4)
    with pytest.raises(ConfigError, match="draft strategy"):
        ssd_infer.generate(tiny_model(), [[2]], draft="nonesuch", max_new_tokens=4)


def test_a_model_that_acts_between_layers_is_caught(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    norm = model.model.norm.forward
    model.model.forward = _scaled(model.model.forward)
    with pytest.raises(UnsupportedModelError, match="differs from its own forward"):
        Target.of(model)
    assert model.model.norm.forward == norm


def _scaled(forward: Any) -> Any:
    def changed(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.last_hidden_state = out.last_hidden_state * 1.01
        return out

    return changed


def test_registry_finds_strategies_by_file() -> None:
    assert {"early_exit", "ngram", "early_exit+ngram"} <= set(drafts.registry())
    for name, strategy in drafts.registry().items():
        assert strategy.info.name == name
        assert strategy.__doc__


def test_costs_reproduce_the_papers_ideal_speedups() -> None:
    """Spec 2.1: S_ideal = (γα+1)/(γc+1) with c = E/L."""
    table = [
        (8, 32, 12, 0.689, 2.32),
        (15, 40, 12, 0.745, 1.81),
        (8, 32, 6, 0.671, 2.01),
        (15, 40, 4, 0.677, 1.48),
    ]
    table += [(6, 24, 8, 0.76, 2.36), (12, 24, 8, 0.976, 1.76), (18, 24, 8, 0.989, 1.27)]
    for exit_layer, layers, gamma, alpha, ideal in table:
        costs = RoundCosts(1.0, exit_layer / layers, Curve((1,), (1.0,)))
        assert costs.speedup(1 + gamma * alpha, gamma) == pytest.approx(ideal, abs=0.012)


def test_tau_of_independent_acceptance_is_the_geometric_sum() -> None:
    overlap = torch.full((1, 4000), 0.6)
    accepted, drafted = expected_rounds(overlap, draft_limits(overlap, 0.0), 4)
    assert 1 + accepted == pytest.approx(sum(0.6**k for k in range(5)), rel=1e-3)
    assert drafted == pytest.approx(4.0, rel=1e-3)


def test_simulated_acceptance_is_the_measured_one(tiny_model: ModelFactory) -> None:
    model, rows = tiny_model(), [row.tolist() for row in prompts(6, 97)]
    found = profile(Target.of(model), rows, new_tokens=33, costs=_flat_costs())
    for exit_layer, gamma in ((1, 1), (1, 4), (2, 3)):
        predicted = found.predict(exit_layer, gamma)
        params = {"exit_layer": exit_layer, "gamma": gamma}
        out = ssd_infer.generate(model, rows, draft="early_exit", draft_params=params, max_new_tokens=33)
        assert out.stats.total.tau == pytest.approx(predicted.tau, abs=0.03)


def test_simulation_by_hand() -> None:
    bits = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0, 0.0]])
    sure = draft_limits(torch.ones_like(bits), 0.0)
    assert greedy_rounds(bits, sure, 2) == (3 / 3, 5 / 3)  # accepts 2 of 2, 1 of 2, 0 of 1
    assert greedy_rounds(bits, sure, 1) == (2 / 4, 1.0)


def test_a_confidence_stop_is_chosen_when_confidence_tells_right_from_wrong() -> None:
    runs = torch.cat([(torch.arange(n + 1) != n).float() for n in (1, 9, 2, 12, 0, 7) * 8])
    right = runs.repeat(2, 4, 1)
    informed = ExitProfile(right, right * 0.9, _flat_costs(), do_sample=False)
    blind = ExitProfile(right, torch.full_like(right, 0.9), _flat_costs(), do_sample=False)
    best = informed.best(thresholds=THRESHOLDS)
    assert best.confidence > 0
    assert best.speedup > informed.best().speedup
    assert blind.best(thresholds=THRESHOLDS).speedup == blind.best().speedup


def _flat_costs() -> Costs:
    return Costs((1, 17), (1.0, 1.0), (0.1, 0.1), 4)


def _constant(level: float) -> ExitProfile:
    return ExitProfile(
        torch.full((2, 1, 200), level), torch.full((2, 1, 200), 0.9), _flat_costs(), do_sample=True
    )


def test_auto_takes_the_fastest_and_falls_back_when_nothing_gains(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target = Target.of(model)
    remember(target, _constant(0.9))
    out = ssd_infer.generate(model, [[2, 3]], draft="early_exit", max_new_tokens=4, do_sample=True, seed=0)
    assert out.draft == "early_exit"
    assert out.draft_params["exit_layer"] == 1
    assert "predicted" in out.note
    remember(target, _constant(0.0))
    out = ssd_infer.generate(model, [[2, 3]], draft="early_exit", max_new_tokens=4, do_sample=True, seed=0)
    assert out.draft is None
    assert "plain decoding" in out.note


def test_auto_calibrates_by_itself() -> None:
    model = build_model(layers=4)
    out = ssd_infer.generate(model, prompts(2, 97), draft="early_exit", max_new_tokens=8)
    assert out.sequences == reference(model, prompts(2, 97), 8)
    assert out.note


@pytest.mark.parametrize(
    ("ids", "mask", "key"),
    [
        ("text", None, "input_ids"),
        ([[2.5, 3]], None, "input_ids"),
        (torch.tensor([[2.0, 3.0]]), None, "input_ids"),
        ([[2, 3]], torch.ones(1, 2), "attention_mask"),
        (torch.tensor([[2, 3]]), torch.ones(1, 3), "attention_mask"),
    ],
)
def test_what_is_no_ids_is_refused(tiny_model: ModelFactory, ids: Any, mask: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ssd_infer.generate(tiny_model(), ids, mask, max_new_tokens=2)


def test_ids_come_in_many_forms(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    forms: list[Any] = [[2, 3, 4], [[2, 3, 4]], torch.tensor([2, 3, 4]), [torch.tensor([[2, 3, 4]])]]
    outs = [ssd_infer.generate(model, form, max_new_tokens=4).sequences for form in forms]
    assert all(out == outs[0] for out in outs)


def test_eos_comes_in_many_forms(tiny_model: ModelFactory) -> None:
    import numpy as np

    model = tiny_model(vocab_size=13)
    free = ssd_infer.generate(model, [[2, 3]], max_new_tokens=12, eos_token_id=[]).sequences[0]
    eos = free[4]
    expected = [free[: free.index(eos) + 1]]
    for form in (eos, [eos], torch.tensor(eos), torch.tensor([eos, 12345]), np.int64(eos)):
        assert ssd_infer.generate(model, [[2, 3]], max_new_tokens=12, eos_token_id=form).sequences == expected


def test_weights_that_do_not_fit_their_config_are_refused(tiny_model: ModelFactory, tmp_path: Path) -> None:
    model = tiny_model(layers=3)
    model.save_pretrained(tmp_path)
    for layers, what in ((4, "missing: model.layers.3"), (2, "unknown to the model: model.layers.2")):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(
            json.dumps(config | {"num_hidden_layers": layers, "layer_types": None})
        )
        with pytest.raises(CheckpointError, match=what):
            ssd_infer.load(tmp_path)
