"""The report of a diffusion checkpoint: every draft a row, equality with stepwise decoding as the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation import evaluate
from ssd_infer.families.diffusion import decoding
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.rows import exit_code, find_row, noise_rows, plain_rows
from ssd_infer.report.schema import validate
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS
from tests.families.diffusion.support import build, prompts
from tests.strategies.fewer_steps.test_losslessness import OneRow


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Save a tiny model and prompts of ids."""
    torch.manual_seed(0)
    folder = tmp_path / "model"
    build(0, block=8, dtype=torch.float32, order="left_to_right").save_pretrained(folder)
    lines = [json.dumps({"ids": row}) for row in prompts((9, 12, 5))]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return folder


def settings(checkpoint: Path, **changes: Any) -> EvalSettings:
    values: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "tasks": [f"file:{checkpoint.parent / 'prompts.jsonl'}"],
        "out": str(checkpoint.parent / "report"),
        "samples": 3,
        "max_new_tokens": 16,
        "repeats": 1,
        "device": "cpu",
        "temperatures": [0.0, 1.0],
    }
    return EvalSettings(**(values | changes))


def test_every_draft_is_a_row_that_passed(checkpoint: Path) -> None:
    report = evaluate(settings(checkpoint))
    validate(report)
    assert exit_code(report) == 0
    for name in ("fewer_steps", *(f"fewer_steps:{drafter}" for drafter in DRAFTERS)):
        for suffix in ("", ":t1"):
            row = find_row(report, name + suffix)
            assert row is not None
            assert row["status"] == "ok", row["reason"]
            assert row["lossless"]["verdict"] == "pass"
            assert row["lossless"]["extra"]["exact_match"] == 1.0
            assert {"nfe", "rows", "tokens_per_nfe", "tokens_per_row", "calls", "sampler"} <= set(
                row["extra"]
            )
            assert row["extra"]["calls"]["curve"][0]["v"] == 1.0
    early = find_row(report, "early_exit")
    assert early is not None
    assert early["reason"].startswith("it drafts for models that decode autoregressively")
    assert [row["name"] for row in plain_rows(report)] == ["ssd_plain", "ssd_plain:t1"]
    assert [row["name"] for row in noise_rows(report)] == ["ssd_plain:again", "ssd_plain:again:t1"]
    assert report["peers"][0]["name"] == "threshold_parallel"
    titles = [chart.title for chart in draw_charts(report)]
    assert "fewer steps: Cost of a call by its number of states" in titles
    folder = checkpoint.parent / "report"
    assert {path.name for path in folder.iterdir()} == {
        "report.json",
        "report.md",
        "report.html",
        "samples.jsonl",
    }


def test_one_draft_can_be_asked_for(checkpoint: Path) -> None:
    params = {"drafter": "ssd_chain", "gamma": 5}
    wanted = settings(checkpoint, draft="fewer_steps", draft_params=params, temperatures=[0.0], batch_size=2)
    report = evaluate(wanted)
    names = [row["name"] for row in report["strategies"] if row["status"] == "ok"]
    assert names == ["fewer_steps"]
    row = find_row(report, "fewer_steps")
    assert row is not None
    assert row["params"] == params
    assert row["extra"]["calls"]["batch"] == 2


def test_the_wrong_verifier_fails_the_report(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_row(denoiser: Any, _settings: Any, canvases: Any) -> OneRow:
        return OneRow(denoiser, canvases)

    monkeypatch.setattr(decoding, "memory_for", one_row)
    params = {"drafter": "ssd_chain", "gamma": 5}
    report = evaluate(settings(checkpoint, draft="fewer_steps", draft_params=params, temperatures=[0.0]))
    row = find_row(report, "fewer_steps")
    assert row is not None
    assert row["lossless"]["verdict"] == "fail"
    assert exit_code(report) == 1


def test_a_draft_that_is_wrong_in_company_fails_the_report(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed one by one it is right; only the ragged batch beside shows the fault, greedy and sampled."""
    right = decoding.memory_for

    def by_batch(denoiser: Any, chosen: Any, canvases: Any) -> Any:
        alone = len(canvases) == 1
        return right(denoiser, chosen, canvases) if alone else OneRow(denoiser, canvases)

    monkeypatch.setattr(decoding, "memory_for", by_batch)
    params = {"drafter": "ssd_chain", "gamma": 5}
    report = evaluate(settings(checkpoint, draft="fewer_steps", draft_params=params))
    for name in ("fewer_steps", "fewer_steps:t1"):
        row = find_row(report, name)
        assert row is not None
        assert "3 of 3 outputs equal" in row["lossless"]["detail"]
        assert row["lossless"]["verdict"] == "fail", row["lossless"]["detail"]
        assert "batch 4, budget" in row["lossless"]["extra"]["batches"]["first_difference"]
    assert exit_code(report) == 1


@pytest.mark.parametrize("objective", ["bd3lm", "mdlm"])
@pytest.mark.parametrize("sampler", [{}, {"steps": 8, "block_length": 4}])
def test_batches_budgets_and_end_marks_are_compared(
    tmp_path: Path, objective: str, sampler: dict[str, Any]
) -> None:
    from ssd_infer.evaluation.bench import open_context
    from ssd_infer.evaluation.contenders import Contender
    from ssd_infer.evaluation.diffusion.exactness import exact_in_batches
    from ssd_infer.families.diffusion.settings import SamplerSettings
    from ssd_infer.strategies.study import Sampling
    from ssd_infer.tuning.budget import Budget, Deadline

    build(0, objective, 4, dtype=torch.float32, eos=3).save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text(
        "\n".join(json.dumps({"ids": row}) for row in prompts((9, 12, 5)))
    )
    bench = open_context(settings(tmp_path / "model"), lambda _: None)
    draft = Contender("fewer_steps", "strategy", lambda *_: ([], None), draft="fewer_steps")
    draft.params = {"drafter": "ssd_chain", "gamma": 3}
    how = SamplerSettings.of(bench.model.config, sampler)
    for sampling in (Sampling(), Sampling(1.0)):
        found = exact_in_batches(bench, [draft], sampling, how, Budget(0.0).deadline(1.0))["fewer_steps"]
        assert found.verdict == "pass", found.detail
        facts = found.extra["batches"]
        assert facts["batch_sizes"] == [1, 4]
        assert facts["equal"] == facts["outputs"] > 0
        assert "with and without end marks" in found.detail
        assert ("alone" in found.detail) == sampling.greedy
    late = exact_in_batches(bench, [draft], Sampling(), how, Deadline(0.0))["fewer_steps"]
    assert late.verdict == "not_run"
    assert "lack of time" in late.detail
