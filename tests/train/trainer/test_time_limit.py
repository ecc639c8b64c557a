"""A run that its time limit ends is saved, reported on, and goes on from there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ssd_train import run
from ssd_train.runs.reports import Reporter
from tests.train.support import tiny_root, with_train

AT_ONCE = 1e-9


def losses(run_dir: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def test_the_clock_ends_a_run_after_the_step_in_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []
    monkeypatch.setattr(Reporter, "final", lambda self, store: reported.extend(store.steps()[-1:]))
    cfg = with_train(tiny_root(tmp_path), max_minutes=AT_ONCE)
    with caplog.at_level(logging.WARNING):
        run_dir = run.train(cfg)
    assert (run_dir / "checkpoints" / "step-1" / "model.safetensors").is_file()
    assert "train.max_minutes=1e-09 ended training after step 1 of 8" in caplog.text
    assert reported == [1]
    assert not (run_dir / "stopped.json").exists()


def test_what_the_limit_left_is_done_by_the_same_command_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = run.train(tiny_root(_made(tmp_path, "whole")))
    cfg = tiny_root(_made(tmp_path, "parts"))
    for _ in range(3):
        run.train(with_train(cfg, max_minutes=AT_ONCE))
    assert losses(run.train(cfg)) == losses(whole)


def test_a_limit_that_is_not_reached_changes_nothing(tmp_path: Path, caplog: Any) -> None:
    run_dir = run.train(with_train(tiny_root(tmp_path), max_minutes=60.0))
    assert (run_dir / "checkpoints" / "step-8").is_dir()
    assert "max_minutes" not in caplog.text


def _made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
