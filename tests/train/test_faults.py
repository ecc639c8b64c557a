"""The rows of docs/reliability.md that no other test shows."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb

from ssd_infer.errors import DataError, SSDError
from ssd_train import run
from ssd_train.config.schema import Root, TrackingConfig
from ssd_train.distributed import launcher
from ssd_train.runs import tracking
from tests.train.ranks import Fault, curve, error_file, free_port, one_rank, train_ranks
from tests.train.support import in_processes, tiny_root, with_train


def assert_same(left: Path, right: Path) -> None:
    """Assert that two runs logged identical curves, whatever stopped them in between."""
    steps = {line["step"] for line in curve(right) if "loss" in line}
    ours = {line["step"]: line for line in curve(left)}
    assert steps <= set(ours)
    for line in curve(right):
        if "loss" in line:
            assert line == {name: ours[line["step"]][name] for name in line}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of twelve steps that nothing interrupted."""
    return run.train(tiny_root(tmp_path_factory.mktemp("whole"), max_steps=12))


@pytest.mark.integration
def test_a_run_preempted_at_five_random_times_has_the_curve_of_an_uninterrupted_one(
    whole: Path, tmp_path: Path
) -> None:
    cfg = tiny_root(tmp_path, max_steps=12)
    rng = random.Random(8)
    done = 0
    for _ in range(5):
        number = rng.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
        step = rng.randint(done, min(done + 2, 10))
        code = train_ranks(cfg, world=1, fault=Fault(number, step))
        assert code == ([-signal.SIGKILL] if number == signal.SIGKILL else [0]), error_file(
            cfg, 0
        ).read_text()
        store = run.CheckpointStore(cfg.run_dir, 3)
        done = max(store.steps(), default=0)
        assert (cfg.run_dir / "stopped.json").exists() == (number != signal.SIGKILL)
    assert train_ranks(cfg, world=1) == [0]
    assert_same(cfg.run_dir, whole)


@pytest.mark.integration
def test_a_kill_during_validation_costs_neither_the_checkpoint_nor_the_curve(
    whole: Path, tmp_path: Path
) -> None:
    cfg = tiny_root(tmp_path, max_steps=12)
    assert train_ranks(cfg, world=1, fault=Fault(signal.SIGKILL, 6, where="evaluation")) == [-signal.SIGKILL]
    assert run.CheckpointStore(cfg.run_dir, 3).steps() == [3, 6]
    assert train_ranks(cfg, world=1) == [0]
    assert_same(cfg.run_dir, whole)


def as_nobody(cfg: Root) -> None:
    """Train as a user without rights to the directory."""
    if os.geteuid() == 0:
        os.seteuid(65534)
    with pytest.raises(SSDError, match=r"output_root: the run directory cannot be used .*Permission denied"):
        run.train(cfg)


@pytest.mark.integration
def test_a_directory_that_may_not_be_written_is_an_error_before_anything_is_built(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and folder != Path("/tmp") and folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    Path(cfg.output_root).mkdir()
    Path(cfg.output_root).chmod(0o555)
    assert in_processes(as_nobody, (cfg,)) == [0]
    assert not list(Path(cfg.output_root).iterdir())


def train_apart(cfg: Root, rank: int, port: int) -> None:
    """Train as one of two processes, with little patience for a slow file system."""
    launcher.PATIENCE = 0.5
    one_rank(cfg, rank, 2, port, None)


@pytest.mark.integration
def test_a_run_directory_that_not_all_nodes_share_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    cfgs = [tiny_root(tmp_path), tiny_root(tmp_path / "node")]
    port = free_port()
    for cfg in cfgs:
        Path(cfg.output_root).mkdir()
    codes = in_processes(train_apart, *((cfg, rank, port) for rank, cfg in enumerate(cfgs)))
    assert codes == [2, 2]
    for rank, cfg in enumerate(cfgs):
        assert "output_root: 1 of 2 processes do not see" in error_file(cfg, rank).read_text()


class Fatal(torch.utils.data.Dataset[Any]):
    """Samples of which one kills the process that reads it."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None and index % 7 == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.samples[index]


@pytest.mark.integration
def test_a_data_worker_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ssd_train.trainer.trainer import SSDTrainer

    build = SSDTrainer.__init__

    def fatal(self: SSDTrainer, *args: Any, train_dataset: Any, **kwargs: Any) -> None:
        build(self, *args, train_dataset=Fatal(train_dataset), **kwargs)

    monkeypatch.setattr(SSDTrainer, "__init__", fatal)
    with pytest.raises(DataError, match=r"train.num_workers: a data-loading process died .*goes on from it"):
        run.train(with_train(tiny_root(tmp_path), num_workers=1, max_steps=40))


def test_an_unreachable_tracking_service_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init = wandb.init

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        if kwargs["mode"] == "online":
            raise wandb.errors.CommError("no route to host")
        return init(*args, **kwargs)

    monkeypatch.setattr(wandb, "init", unreachable)
    cfg = tiny_root(tmp_path, max_steps=2)
    cfg = replace(cfg, tracking=TrackingConfig(name="wandb", mode="online"))
    run.train(cfg)
    assert "could not start W&B online: CommError: no route to host" in caplog.text
    assert list((cfg.run_dir / "wandb").glob("offline-run-*"))
    assert curve(cfg.run_dir)[-1]["step"] == 2


def test_a_resumed_run_keeps_its_tracking_id_and_disabled_tracks_nothing(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    first = tracking.run_id(cfg, cfg.run_dir)
    assert tracking.run_id(with_train(cfg, max_steps=99), cfg.run_dir) == first
    assert tracking.run_id(replace(cfg, resume="never"), cfg.run_dir) != first
    facts = json.loads((cfg.run_dir / "tracking.json").read_text())
    assert facts["project"] == "ssd"
    off = replace(cfg, tracking=TrackingConfig(name="wandb", mode="disabled"))
    assert type(tracking.start(off, tmp_path / "off")) is tracking.Tracker
    assert not (tmp_path / "off").exists()


def test_a_report_that_was_cut_off_is_made_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssd_train.runs import reports

    calls: list[str] = []

    def cut_off(self: reports.Reporter, path: Path, step: int) -> None:
        calls.append(path.name)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(reports.Reporter, "_evaluate", cut_off)
    monkeypatch.setattr(reports, "_show", lambda _out: None)
    cfg = tiny_root(tmp_path, max_steps=2)
    cfg.eval.enabled = True
    with pytest.raises(KeyboardInterrupt):
        run.train(cfg)
    run.train(cfg)
    assert calls == ["step-2", "step-2"]


def test_every_row_of_the_fault_table_names_a_test() -> None:
    root = Path(__file__).resolve().parents[2]
    table = (root / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = table.partition("## Faults that were found")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    tests = "".join(file.read_text(encoding="utf-8") for file in (root / "tests").rglob("test_*.py"))
    assert len(rows) >= 12
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert [name for name in named if f"def {name}(" not in tests] == []
