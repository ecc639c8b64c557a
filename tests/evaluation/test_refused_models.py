"""A checkpoint that cannot be decoded here gets a report: transformers' baseline, and the reason in every row."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ssd_infer.__main__ import main
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation import evaluate
from ssd_infer.report.write import read_report
from ssd_infer.strategies.registry import basics
from tests.conftest import build_model
from tests.engine.causal_families import tiny

ELSEWHERE = ("fewer_steps", "ctc_draft")
"""Strategies for models of other kinds, whose rows say so."""


def saved(model: nn.Module, folder: Path) -> Path:
    """Save a model and two prompts of token ids."""
    model.save_pretrained(folder)  # type: ignore[operator]
    lines = [{"ids": [5, 6, 7, 8, 9, 10]}, {"ids": [8, 9, 10, 11]}]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: tiny("gemma3n_text"), "its layers pass on several predictions of every token at once"),
        (lambda: tiny("recurrent_gemma"), "its layers keep a recurrent state"),
    ],
    ids=["gemma3n", "recurrent_gemma"],
)
def test_a_refused_checkpoint_gets_a_report(
    build: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(build(), tmp_path / "m")
    line = f"checkpoint={folder} tasks=file:{folder}/prompts.jsonl out={tmp_path}/out samples=2 repeats=1"
    line += " temperatures=0 threads=1 max_new_tokens=4 device=cpu"
    monkeypatch.setattr(sys, "argv", ["ssd_infer", *line.split()])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0  # no row claims anything
    report = read_report(tmp_path / "out")
    speeds = {row["name"]: row["tokens_per_second"] for row in report["baselines"]}
    assert speeds["transformers_generate"] > 0
    assert speeds["ssd_plain"] is None
    rows = {row["name"]: row for row in report["strategies"]}
    assert {name.partition(":")[0] for name in rows} == set(basics())
    assert {row["status"] for row in rows.values()} == {"not_applicable"}
    for name, row in rows.items():
        if name not in ELSEWHERE and not row["reason"].startswith("not measured"):
            assert said in row["reason"]
            assert "cannot draft" not in row["reason"]
    assert said in rows["early_exit"]["reason"]
    assert report["verdict"]["best_strategy"] is None


def settings(folder: Path, out: Path, **changes: Any) -> EvalSettings:
    """Return the shortest run on a saved model."""
    short = {"samples": 2, "repeats": 1, "max_new_tokens": 8, "threads": 1, "device": "cpu", "grid": False}
    tasks = [f"file:{folder}/prompts.jsonl"]
    given = short | {"tasks": tasks, "temperatures": [0.0]} | changes
    return EvalSettings(checkpoint=str(folder), out=str(out), **given)


def test_a_text_past_the_positions_of_a_checkpoint_is_a_warning(tmp_path: Path) -> None:
    folder = saved(build_model(max_position_embeddings=12), tmp_path / "m")
    params = {"exit_layer": 2, "gamma": 2}
    report = evaluate(settings(folder, tmp_path / "out", draft="early_exit", draft_params=params))
    said = "texts of up to 14 tokens go past the 12 positions this checkpoint is made for"
    assert any(said in line for line in report["verdict"]["warnings"])
    report = evaluate(
        settings(folder, tmp_path / "o", draft="early_exit", draft_params=params, max_new_tokens=6)
    )
    assert not any("positions" in line for line in report["verdict"]["warnings"])


def test_experts_of_another_form_are_not_denied(tmp_path: Path) -> None:
    folder = saved(tiny("phimoe"), tmp_path / "m")
    report = evaluate(settings(folder, tmp_path / "out", draft="reduced_experts"))
    row = next(row for row in report["strategies"] if row["name"] == "reduced_experts")
    assert row["status"] == "not_applicable"
    assert row["reason"].startswith("the routed experts of phimoe models are not known here (known: ")
