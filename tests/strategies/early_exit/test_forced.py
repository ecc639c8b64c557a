"""Acceptance from teacher-forced passes: exact when greedy, in expectation when sampling."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.carried import carry
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import validate
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.early_exit.early_exit_ngram import EarlyExitNgram
from ssd_infer.strategies.early_exit.forced import Forced, Shape, forced_acceptance, forced_facts, shape_of
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget
from ssd_infer.tuning.costs import Costs
from tests.conftest import build_model
from tests.report.sample import sample_report

PROMPTS = [[5 + (7 * i * j + j) % 90 for j in range(4 + i % 5)] for i in range(1, 21)]
TOKENS = 24


def tuned(layers: int = 4, share: float = 0.3) -> Any:
    """Return a model whose last layers say little, so that an exit before them is often right."""
    model = build_model(layers=layers).double()
    for layer in model.model.layers[1:]:
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.data.mul_(share)
    return model


def forever() -> Any:
    return Budget(0.0).deadline(1.0)


@pytest.mark.parametrize("shape", [Shape(1, 3, 0.0), Shape(2, 5, 0.0), Shape(1, 4, 0.02)])
def test_greedy_acceptance_is_that_of_real_decoding(shape: Shape) -> None:
    model = tuned()
    found = forced_acceptance(Target.of(model), PROMPTS, TOKENS, Sampling(), shape, 0, forever())
    params = {"exit_layer": shape.exit_layer, "gamma": shape.gamma, "confidence": shape.confidence}
    out = ssd_infer.generate(
        model, PROMPTS, draft="early_exit", draft_params=params, max_new_tokens=TOKENS, eos_token_id=-1
    )
    total = out.stats.total
    assert 0 < total.accepted < total.drafted
    assert len(found.rounds) == len(PROMPTS)
    assert sum(found.accepted) == pytest.approx(total.accepted, rel=0.02)
    assert sum(found.rounds) == pytest.approx(total.rounds, rel=0.02)
    exact = [row.rounds for row in out.stats.rows]
    assert sum(abs(mine - real) < 1.01 for mine, real in zip(found.rounds, exact, strict=True)) == len(
        PROMPTS
    )


def test_an_exit_that_is_the_model_is_always_accepted_when_sampling() -> None:
    model = tuned(share=0.0)
    found = forced_acceptance(
        Target.of(model), PROMPTS, TOKENS, Sampling(1.0), Shape(1, 2, 0.0), 0, forever()
    )
    facts = found.facts(Costs((1, 2, 3, 5, 9, 17), (1.0,) * 6, (1.0,) * 6, 4))
    assert facts["alpha"] == pytest.approx(1.0, abs=0.05)
    assert facts["predicted_speedup"] == pytest.approx(facts["tau"] * 5 / (2 * 2 + 5), rel=0.01)


def test_sampled_acceptance_agrees_with_decoding_in_expectation() -> None:
    model, shape = tuned(share=1.0), Shape(1, 3, 0.0)
    found = forced_acceptance(Target.of(model), PROMPTS, TOKENS, Sampling(1.0), shape, 0, forever())
    params = {"exit_layer": 1, "gamma": 3, "confidence": 0.0}
    rounds = accepted = 0
    for seed in range(6):
        total = ssd_infer.generate(
            model,
            PROMPTS,
            draft="early_exit",
            draft_params=params,
            max_new_tokens=TOKENS,
            do_sample=True,
            seed=seed,
        ).stats.total
        rounds, accepted = rounds + total.rounds, accepted + total.accepted
    assert 1 + sum(found.accepted) / sum(found.rounds) == pytest.approx(1 + accepted / rounds, rel=0.05)


def test_prompts_the_limit_leaves_out_are_not_counted() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    model, deadline = tuned(), Budget(1.0, clock).deadline(1.0)
    found = forced_acceptance(
        Target.of(model), PROMPTS * 9, TOKENS, Sampling(), Shape(1, 3, 0.0), 0, deadline
    )
    assert 0 < len(found.rounds) < 9 * len(PROMPTS)
    gone = Budget(1.0, lambda: now[0]).deadline(0.0)
    assert forced_facts(Target.of(model), PROMPTS, TOKENS, Sampling(), Shape(1, 3, 0.0), 0, gone) is None


def test_the_interval_of_the_acceptance_is_over_prompts() -> None:
    found = Forced(Shape(1, 3, 0.0))
    for number in range(40):
        found.add(torch.full((30,), float(number % 2)), torch.ones(30), do_sample=False)
    facts = found.facts(Costs((1, 2, 3, 5, 9, 17), (1.0,) * 6, (1.0,) * 6, 4))
    low, high = facts["tau_ci95"]
    assert low < facts["tau"] < high
    assert facts == found.facts(Costs((1, 2, 3, 5, 9, 17), (1.0,) * 6, (1.0,) * 6, 4))
    assert facts["prompts"] == 40


def test_only_a_row_that_drafts_has_a_shape_and_a_study() -> None:
    params = {"exit_layer": 2, "gamma": 3, "confidence": 0.5}
    assert shape_of(params) == Shape(2, 3, 0.5)
    assert shape_of(None) is None
    context: Any = SimpleNamespace(
        target=Target.of(tuned()), wanted=True, settings=EvalSettings(checkpoint="-"), params=params
    )
    assert [study.key for study in EarlyExit.studies(context)] == ["grid", "teacher_forced"]
    context.params = None
    assert [study.key for study in EarlyExit.studies(context)] == ["grid"]
    context.wanted, context.settings = False, EvalSettings(checkpoint="-", draft="ngram")
    assert EarlyExit.studies(context) == []
    assert EarlyExitNgram.studies(context) == []


def test_prediction_and_measurement_stand_side_by_side() -> None:
    report = sample_report()
    row = report["strategies"][0]
    assert EarlyExit.tables(row) == []
    row["extra"]["teacher_forced"] = {
        "prompts": 128,
        "tokens": 4096,
        "alpha": 0.7,
        "tau": 2.31,
        "tau_ci95": [2.2, 2.4],
        "draft_ratio_c": 0.2,
        "verify_ratio": 1.1,
        "predicted_speedup": 1.8,
        "predicted_ci95": [1.75, 1.85],
    }
    assert carry(report["strategies"]) == []
    validate(report)
    for page in (render_markdown(report), render_html(report)):
        assert "Predicted from many prompts" in page
        assert "1.80×" in page
    assert EarlyExit.tables(row)[0].rows[0][-1] == "0.90"


def test_the_grid_is_two_panels_of_cells_and_a_check_of_them() -> None:
    report = sample_report()
    assert carry(report["strategies"]) == []
    validate(report)
    heat, checked = EarlyExit.plots(report["strategies"][0])
    assert (heat.kind, heat.panels, heat.centre) == ("heatmap", ["predicted", "measured"], 1.0)
    assert [len(one.x) for one in heat.series] == [30, 5]
    assert [len(one.x) for one in checked.series] == [2, 5]
    titles = [chart.title for chart in draw_charts(report)]
    assert f"early exit: {heat.title}" in titles
    assert heat.title not in render_markdown(report)
