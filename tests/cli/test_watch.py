"""The watcher: every checkpoint once, oldest first, until the training is over."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import CheckpointError
from ssd_infer.report.wandb import Follower
from ssd_infer.watch import Watch
from tests.report.sample import sample_report


class Run:
    """A run directory whose training goes on while the watcher sleeps."""

    def __init__(self, directory: Path, steps: list[int], last: int) -> None:
        self.directory, self.steps, self.time = directory, steps, 0.0
        self.directory.mkdir(parents=True)
        text = yaml.safe_dump({"train": {"max_steps": last}})
        (self.directory / "config.yaml").write_text(text)
        self.seen: list[str] = []

    def save(self, step: int) -> None:
        (self.directory / "checkpoints" / f"step-{step}").mkdir(parents=True)

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.steps:
            self.save(self.steps.pop(0))

    def evaluate(self, settings: EvalSettings) -> dict[str, Any]:
        self.seen.append(Path(settings.checkpoint).name)
        assert settings.out is not None
        Path(settings.out).mkdir(parents=True)
        report = sample_report()
        (Path(settings.out) / "report.json").write_text(json.dumps(report))
        return report

    def watch(self, **changes: Any) -> Watch:
        settings = EvalSettings(
            checkpoint="watched", watch=str(self.directory), watch_poll_seconds=60, **changes
        )
        return Watch(settings, self.evaluate, lambda _report: 0)


def test_every_checkpoint_once_until_the_last(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", [5, 10, 12], last=12)
    assert run.watch().run(run.sleep, lambda: run.time) == 0
    assert run.seen == ["step-5", "step-10", "step-12"]
    assert run.watch().run(run.sleep, lambda: run.time) == 0
    assert len(run.seen) == 3
    shutil.rmtree(run.directory / "reports" / "step-10")
    assert run.watch().run(run.sleep, lambda: run.time) == 0
    assert run.seen[3:] == ["step-10"]


def test_a_training_that_stalls_ends_the_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path / "run", [5], last=12)
    run.watch(watch_idle_minutes=10).run(run.sleep, lambda: run.time)
    assert run.seen == ["step-5"]
    assert "no new checkpoint for 10 minutes" in capsys.readouterr().out


def test_a_checkpoint_that_cannot_be_evaluated_is_said_and_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "run", [5, 12], last=12)
    watch = run.watch()
    whole = watch.evaluate

    def fail_once(settings: EvalSettings) -> dict[str, Any]:
        if settings.checkpoint.endswith("step-5"):
            raise CheckpointError("step-5: damaged")
        return whole(settings)

    watch.evaluate = fail_once
    assert watch.run(run.sleep, lambda: run.time) == 2
    assert run.seen == ["step-12"]
    assert "step-5: damaged" in capsys.readouterr().err


def test_a_damaged_checkpoint_gets_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path / "run", [], last=12)
    for step in (5, 12):
        run.save(step)
        folder = run.directory / "checkpoints" / f"step-{step}"
        (folder / "weights.bin").write_bytes(b"1234")
        (folder / "ssd.json").write_text(json.dumps({"step": step}))
        entry = {"bytes": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}
        (folder / "ssd_manifest.json").write_text(json.dumps({"files": {"weights.bin": entry}}))
    (run.directory / "checkpoints" / "step-5" / "weights.bin").write_bytes(b"1235")
    assert run.watch().run(run.sleep, lambda: run.time) == 2
    assert run.seen == ["step-12"]
    assert "step-5: weights.bin does not have the hash it was saved with" in capsys.readouterr().err


def test_reports_join_the_tracking_run_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", [5, 12], last=12)
    (run.directory / "tracking.json").write_text(json.dumps({"id": "abc", "project": "p"}))
    opened: list[Any] = []
    init = wandb.init

    def offline(**values: Any) -> Any:
        opened.append((values["id"], values["mode"], values["resume"]))
        return init(**{**values, "mode": "offline", "resume": None})

    monkeypatch.setattr(wandb, "init", offline)
    watch = run.watch()
    watch.follower = Follower(run.directory, mode="online")
    assert watch.run(run.sleep, lambda: run.time) == 0
    # Online, a run has one writer: both reports wait for the end of the training.
    assert opened == [("abc", "online", "allow")]
    assert not watch.follower.pending


def test_what_is_only_called_like_a_checkpoint_is_not_evaluated(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", [], last=12)
    for name, step in (("step-12", 5), ("step-5", 5), ("step-007", 7), ("step-²", 2)):
        folder = run.directory / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "ssd.json").write_text(json.dumps({"step": step}))
    watch = run.watch(watch_idle_minutes=3)
    assert not watch.over(), "a renamed copy is no end of the training"
    watch.run(run.sleep, lambda: run.time)
    assert run.seen == ["step-5"]
