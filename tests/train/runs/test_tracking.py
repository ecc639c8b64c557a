"""Tracking: one id for a run, rank 0 only, and no failure of a service reaches the training."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import wandb

from ssd_infer.errors import ConfigError
from ssd_train.config.schema import Root, ScratchModelConfig, StdlibTextConfig, TrackingConfig
from ssd_train.recipes.plain.settings import PlainConfig
from ssd_train.runs import tracking

REPORT: dict[str, Any] = {
    "identity": {"step": 40},
    "baselines": [{"name": "plain", "tokens_per_second": 100.0}],
    "peers": [{"name": "prompt_lookup", "tokens_per_second": 130.0, "speedup": 1.3, "verdict": "pass"}],
    "strategies": [
        {
            "name": "early_exit",
            "params": {"exit_layer": 2},
            "status": "ok",
            "lossless": {"verdict": "pass"},
            "acceptance": {"alpha": 0.7, "tau": 2.4},
            "speed": {"tokens_per_second": 180.0, "speedup": 1.8},
        },
        {"name": "swift", "status": "not_applicable", "reason": "not built", "speed": None},
    ],
}


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away whatever credentials and ranks the machine has."""
    for name in (
        "WANDB_API_KEY",
        "WANDB_MODE",
        "WANDB_IDENTITY_TOKEN_FILE",
        "WANDB_BASE_URL",
        "RANK",
        "NETRC",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def run(tmp_path: Path, name: str = "wandb", **values: Any) -> Root:
    values = {"seed": 0, "tracking": TrackingConfig(name=name), **values}
    return Root(
        recipe_name="t",
        run_name="r",
        output_root=str(tmp_path),
        model=ScratchModelConfig(),
        data=StdlibTextConfig(),
        recipe=PlainConfig(),
        **values,
    )


def report_in(tmp_path: Path) -> Path:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(REPORT))
    (folder / "report.md").write_text("# Report\n")
    return folder


def test_the_id_is_kept_and_differs_between_runs(tmp_path: Path) -> None:
    cfg = run(tmp_path)
    first = tracking.run_id(cfg, tmp_path / "a")
    assert tracking.run_id(cfg, tmp_path / "a") == first
    (tmp_path / "a" / tracking.ID_FILE).unlink()
    assert tracking.run_id(cfg, tmp_path / "a") == first
    assert tracking.run_id(cfg, tmp_path / "b") != first
    assert tracking.run_id(dataclasses.replace(cfg, seed=1), tmp_path / "c") != first


def test_starting_anew_gets_a_new_id(tmp_path: Path) -> None:
    cfg = run(tmp_path)
    first = tracking.run_id(cfg, tmp_path)
    anew = tracking.run_id(dataclasses.replace(cfg, resume="never"), tmp_path)
    assert anew != first
    assert tracking.run_id(cfg, tmp_path) == anew


def test_credentials_are_found_in_environment_and_netrc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not tracking.has_credentials()
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert tracking.has_credentials()
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "home").mkdir()
    netrc = tmp_path / "home" / ".netrc"
    netrc.write_text("machine api.example.org login user password secret\n")
    netrc.chmod(0o600)
    assert not tracking.has_credentials()
    monkeypatch.setenv("WANDB_BASE_URL", "https://api.example.org")
    assert tracking.has_credentials()


def test_without_credentials_wandb_runs_offline_and_prints_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = run(tmp_path)
    ids = []
    for _ in range(2):
        with tracking.start(cfg, cfg.run_dir) as tracker:
            assert tracker.report_to == ["wandb"]
            assert wandb.run is not None
            ids.append(wandb.run.id)
            wandb.run.log({"loss": 1.0})
            tracker.log_report(report_in(tmp_path) if len(ids) == 1 else tmp_path / "report")
    assert ids[0] == ids[1]
    printed = capsys.readouterr().out
    command = f"wandb sync {cfg.run_dir}/wandb/offline-run-*-{ids[0]}"
    assert printed.count(command) == 2
    assert len(list((cfg.run_dir / "wandb").glob(f"offline-run-*-{ids[0]}"))) >= 1


class FakeRun:
    """A W&B run that notes what it is given."""

    offline, id, url = False, "abc", "https://example.org/abc"

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.artifacts: list[Any] = []
        self.exit_codes: list[int] = []

    def define_metric(self, name: str, step_metric: str) -> None:
        assert name.startswith("report/")

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


def test_a_report_is_sent_as_table_and_artifact(tmp_path: Path) -> None:
    fake = FakeRun()
    tracking.WandbTracker(fake, tmp_path).log_report(report_in(tmp_path))
    (logged,) = fake.logged
    assert logged["report"].columns[:3] == ["step", "kind", "name"]
    assert [row[:3] for row in logged["report"].data] == [
        [40, "baseline", "plain"],
        [40, "peer", "prompt_lookup"],
        [40, "strategy", "early_exit"],
        [40, "strategy", "swift"],
    ]
    assert logged["report/early_exit/speedup"] == 1.8
    assert not any("swift" in key for key in logged)
    (artifact,) = fake.artifacts
    assert sorted(artifact.manifest.entries) == ["report.json", "report.md"]


def test_online_is_chosen_with_credentials_and_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> FakeRun:
        calls.append(options)
        return FakeRun()

    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setattr(wandb, "init", init)
    cfg = run(tmp_path)
    tracking.start(cfg, cfg.run_dir)
    (call,) = calls
    assert (call["mode"], call["resume"], call["project"]) == ("online", "allow", "ssd")
    assert call["id"] == json.loads((cfg.run_dir / tracking.ID_FILE).read_text())["id"]
    assert call["config"]["model"]["num_layers"] == 16
    json.dumps(call["config"])


def test_a_dead_network_falls_back_to_offline_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    def init(*, mode: str, **options: Any) -> FakeRun:
        tried.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("no network")
        return FakeRun()

    monkeypatch.setattr(wandb, "init", init)
    cfg = run(tmp_path, tracking=TrackingConfig(mode="online"))
    with caplog.at_level(logging.WARNING):
        tracker = tracking.start(cfg, cfg.run_dir)
    assert tried == ["online", "offline"]
    assert tracker.report_to == ["wandb"]
    assert "no network" in caplog.text


def test_a_service_that_always_fails_leaves_the_run_untracked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**options: Any) -> FakeRun:
        raise OSError("disk full")

    monkeypatch.setattr(wandb, "init", init)
    cfg = run(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert tracking.start(cfg, cfg.run_dir).report_to == []
    assert "disk full" in caplog.text


def test_failures_while_running_are_said_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeRun):
        def finish(self, exit_code: int) -> None:
            raise ConnectionError("gone")

    tracker = tracking.WandbTracker(Broken(), tmp_path)
    with caplog.at_level(logging.WARNING):
        tracker.log_report(tmp_path / "no-report")
        tracker.finish()
    assert "could not send the report" in caplog.text
    assert "gone" in caplog.text


def test_the_run_is_closed_once_and_marked_failed_after_an_error(tmp_path: Path) -> None:
    fake = FakeRun()
    with pytest.raises(ValueError, match="stop"), tracking.WandbTracker(fake, tmp_path):
        raise ValueError("stop")
    assert fake.exit_codes == [1]
    tracker = tracking.WandbTracker(fake, tmp_path)
    tracker.finish()
    tracker.finish()
    assert fake.exit_codes == [1, 0]


def test_other_ranks_track_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**options: Any) -> None:
        raise AssertionError("only rank 0 may start a run")

    monkeypatch.setattr(wandb, "init", refuse)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    cfg = run(tmp_path)
    assert tracking.start(cfg, cfg.run_dir).report_to == []
    assert not cfg.run_dir.exists()


def test_none_follows_nothing_and_writes_nothing(tmp_path: Path) -> None:
    cfg = run(tmp_path, "none")
    with tracking.start(cfg, cfg.run_dir) as tracker:
        tracker.log_report(tmp_path)
    assert tracker.report_to == []
    assert not cfg.run_dir.exists()


def test_wandb_is_not_imported_before_it_is_asked_for() -> None:
    import subprocess
    import sys

    code = "import sys, ssd_train.runs.tracking; sys.exit('wandb' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_an_unknown_tracker_is_an_error(tmp_path: Path) -> None:
    cfg = run(tmp_path, "comet")
    with pytest.raises(ConfigError, match=r"tracking.*wandb, tensorboard, mlflow, trackio, none.*comet"):
        tracking.start(cfg, cfg.run_dir)


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_is_an_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    cfg = run(tmp_path, name)
    with pytest.raises(ConfigError, match=f"tracking: needs the package {name}"):
        tracking.start(cfg, cfg.run_dir)


def test_tensorboard_missing_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    cfg = run(tmp_path, "tensorboard")
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        tracking.start(cfg, cfg.run_dir)


def test_tensorboard_gets_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    cfg = run(tmp_path, "tensorboard")
    tracker = tracking.start(cfg, cfg.run_dir)
    assert tracker.report_to == ["tensorboard"]
    assert tracking.os.environ["TENSORBOARD_LOGGING_DIR"] == str(cfg.run_dir / "tensorboard")
