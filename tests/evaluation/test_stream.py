"""The test of timed sampled outputs: calibrated, powerful, and joined with the enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ssd_infer.evaluation.contenders import ours
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.stream import FEWEST_TOKENS, Output, both, judge_stream, places
from ssd_infer.strategies.study import Sampling
from tests.conftest import ModelFactory
from tests.evaluation.test_losslessness import wrong_sample

PROMPTS = [[5 + (7 * i * j + j) % 90 for j in range(8)] for i in range(1, 7)]
WARM = Sampling(1.0)


def stream(
    model: Any, draft: str | None, params: dict[str, Any], sampling: Sampling, seed: int
) -> list[Output]:
    tokens, _ = ours(model, draft, params, sampling, eos=[])(PROMPTS, 60, seed)
    return [Output(prompt, row) for prompt, row in zip(PROMPTS, tokens, strict=True)]


@pytest.mark.parametrize("sampling", [WARM, Sampling(0.7, 0, 0.9), Sampling(1.0, 3)])
def test_right_outputs_pass(tiny_model: ModelFactory, sampling: Sampling) -> None:
    model = tiny_model()
    outputs = stream(model, "early_exit", {"exit_layer": 1, "gamma": 3}, sampling, 1)
    found = judge_stream(model, outputs, sampling, drafted=9)
    assert found.verdict == "pass", found.detail
    assert found.extra["places"]["tokens"] == 360


def test_p_values_are_uniform_under_the_truth(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    found = [
        judge_stream(model, stream(model, None, {}, WARM, seed), WARM, 0, plain=True) for seed in range(12)
    ]
    for order in (0, 1):
        values = [result.extra["places"]["p_values"][order] for result in found]
        assert min(values) > 1e-4
        assert 0.2 < sum(values) / len(values) < 0.8


@pytest.mark.parametrize("how", ["accepts everything", "ignores the residual"])
def test_wrong_verifier_fails(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    import ssd_infer.engine.verdict as verdict

    model = tiny_model()
    monkeypatch.setattr(verdict, "accept", wrong_sample(verdict.accept, how))
    outputs = [
        output
        for seed in range(4)
        for output in stream(model, "early_exit", {"exit_layer": 1, "gamma": 3}, WARM, seed)
    ]
    assert judge_stream(model, outputs, WARM, drafted=9).verdict == "fail"


def test_another_temperature_fails(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    outputs = stream(model, None, {}, Sampling(0.6), 0)
    assert judge_stream(model, outputs, WARM, 9).verdict == "fail"


def test_a_token_the_target_cannot_draw_fails(tiny_model: ModelFactory) -> None:
    model, sampling = tiny_model(), Sampling(1.0, 3)
    outputs = stream(model, None, {}, sampling, 0)
    last = torch.tensor([outputs[0].prompt + outputs[0].tokens[:-1]])
    outputs[0].tokens[-1] = int(model(input_ids=last).logits[0, -1].argmin())
    assert places(model, outputs[0], sampling, torch.Generator())[0][-1] is None
    found = judge_stream(model, outputs, sampling, 9)
    assert found.verdict == "fail"
    assert "1 tokens impossible" in found.detail


def test_too_little_is_not_run(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    outputs = stream(model, None, {}, WARM, 0)
    assert judge_stream(model, outputs, WARM, drafted=0).verdict == "not_run"
    few = [Output(outputs[0].prompt, outputs[0].tokens[: FEWEST_TOKENS - 1])]
    assert judge_stream(model, few, WARM, drafted=9).verdict == "not_run"
    assert judge_stream(model, [], WARM, drafted=9).verdict == "not_run"


@pytest.mark.parametrize(
    ("one", "two", "verdict"),
    [
        ("pass", "pass", "pass"),
        ("pass", "fail", "fail"),
        ("fail", "not_run", "fail"),
        ("not_run", "pass", "pass"),
        ("not_run", "not_run", "not_run"),
    ],
)
def test_joining_verdicts(one: Any, two: Any, verdict: str) -> None:
    joined = both(LosslessResult(one, "sampling: a"), LosslessResult(two, "sampling: b", {"places": 1}))
    assert (joined.verdict, joined.detail, joined.extra) == (verdict, "sampling: a; b", {"places": 1})
