"""A run that was stopped, killed or damaged goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from ssd_infer.errors import CheckpointError, ConfigError, DataError, SSDError
from ssd_train import run
from ssd_train.cli.validate import SCHEDULERS
from ssd_train.config.schema import OptimConfig, Root, StdlibTextConfig
from ssd_train.recipes.layerskip.settings import LayerSkipConfig
from ssd_train.runs import checkpoints
from ssd_train.runs.arguments import rate_share, training_arguments
from ssd_train.runs.identity import check_same_run, identity
from tests.train.support import in_processes, tiny_root, train_until_killed, with_train

CLOCK = "seconds_per_step"


def curve(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != CLOCK} for line in lines]


def weights(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "checkpoints" / f"step-{step}" / "model.safetensors")


def assert_same_run(first: Path, second: Path, step: int = 8) -> None:
    """Assert that both runs logged bit-identical curves and ended in bit-identical weights."""
    assert curve(first) == curve(second)
    for name, value in weights(first, step).items():
        assert torch.equal(value, weights(second, step)[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted run, logging every second and saving every third of eight steps."""
    return run.train(tiny_root(tmp_path_factory.mktemp("whole")))


def test_the_uninterrupted_run_is_what_the_others_are_compared_with(whole: Path) -> None:
    lines = curve(whole)
    assert [line["step"] for line in lines] == [2, 3, 4, 6, 8]
    assert lines[0]["loss"] > lines[-1]["loss"]
    terms = {name for line in lines for name in line}
    assert {"exit_2_loss", "exit_3_forward", "eval_exit_1_agreement", "eval_tau_sim"} <= terms


# Step 3 falls between two log lines and both inside a rotation period and a warm-up, so every kind of state matters.
@pytest.mark.parametrize("stop", [3, 6])
def test_stopping_and_repeating_the_command_changes_nothing(
    whole: Path, tmp_path: Path, stop: int, monkeypatch: Any
) -> None:
    cfg = tiny_root(tmp_path)
    save = checkpoints.CheckpointStore.annotate

    def interrupted(self: checkpoints.CheckpointStore, step: int, values: dict[str, Any]) -> None:
        save(self, step, values)
        if step == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.CheckpointStore, "annotate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.train(cfg)
    monkeypatch.undo()
    torch.manual_seed(12345)
    assert_same_run(whole, run.train(cfg))


def test_muon_is_restored_with_both_its_parts(tmp_path: Path) -> None:
    finals = []
    for name, stops in (("whole", [6]), ("parts", [2, 4, 6])):
        for stop in stops:
            cfg = tiny_root(tmp_path, max_steps=stop, save_steps=2, lr_scheduler="constant", warmup_steps=0)
            cfg = replace(cfg, run_name=name, optim=OptimConfig(name="muon"))
            assert isinstance(cfg.recipe, LayerSkipConfig)
            cfg.recipe.layer_dropout.time_scale = "const"
            run.train(cfg)
        finals.append(cfg.run_dir)
    for name, value in weights(finals[0], 6).items():
        assert torch.equal(value, weights(finals[1], 6)[name]), name


@pytest.mark.integration
@pytest.mark.parametrize(("where", "step", "intact"), [("step", 4, [3]), ("save", 6, [3]), ("save", 3, [])])
def test_a_kill_at_any_moment_changes_nothing(
    whole: Path, tmp_path: Path, where: str, step: int, intact: list[int]
) -> None:
    cfg = tiny_root(tmp_path)
    assert in_processes(train_until_killed, (cfg, where, step)) == [-signal.SIGKILL]
    store = checkpoints.CheckpointStore(cfg.run_dir, 3)
    assert store.steps() == intact
    assert bool(list(store.directory.glob(".partial-*"))) == (where == "save")
    assert_same_run(whole, run.train(cfg))
    assert not list(store.directory.glob(".*"))


def copied(whole: Path, tmp_path: Path) -> tuple[Root, Path]:
    """Return a configuration whose run directory is a copy of the finished run."""
    cfg = tiny_root(tmp_path)
    cfg.data = replace(cfg.data, path=str(whole.parents[2] / "text.txt"))
    shutil.copytree(whole, cfg.run_dir)
    return cfg, cfg.run_dir


def test_a_damaged_checkpoint_is_passed_over_aloud(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    file = run_dir / "checkpoints" / "step-8" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (run_dir / "checkpoints" / "step-6" / "optimizer.pt").unlink()
    cfg.train.keep_last = 1
    assert_same_run(whole, run.train(cfg))
    kept = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert {"damaged-step-6", "damaged-step-8", "step-8"} <= set(kept)
    assert checkpoints.CheckpointStore(run_dir, 1).latest() == run_dir / "checkpoints" / "step-8"
    assert "step-8: model.safetensors does not have the hash" in caplog.text
    assert "step-6: optimizer.pt is missing; continuing from step 3" in caplog.text


def test_no_intact_checkpoint_is_an_error_and_nothing_is_overwritten(whole: Path, tmp_path: Path) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    for step in (3, 6, 8):
        (run_dir / "checkpoints" / f"step-{step}" / "config.json").write_text("{}")
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="no checkpoint of this run is intact"):
        run.train(cfg)
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_is_left_alone(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    run.train(cfg)
    assert "nothing to train" in capsys.readouterr().out
    assert_same_run(whole, run_dir)


def test_other_settings_are_another_run(whole: Path, tmp_path: Path) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    assert isinstance(cfg.recipe, LayerSkipConfig)
    other = with_train(cfg, learning_rate=1e-3, logging_steps=5)
    other.recipe = replace(cfg.recipe, early_exit=replace(cfg.recipe.early_exit, e_scale=0.9))
    before = (run_dir / "config.yaml").read_bytes()
    with pytest.raises(ConfigError) as caught:
        run.train(other)
    assert {problem.key for problem in caught.value.problems} == {
        "train.learning_rate",
        "recipe.early_exit.e_scale",
    }
    assert "another run_name" in str(caught.value)
    assert (run_dir / "config.yaml").read_bytes() == before


def test_a_run_can_be_made_longer_and_its_cadence_changed(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    run.train(with_train(cfg, max_steps=10, logging_steps=1, save_steps=1, eval_batches=1, keep_last=1))
    assert [line["step"] for line in curve(run_dir)][-3:] == [8, 9, 10]
    assert curve(run_dir)[:-2] == curve(whole)
    assert "train.max_steps was 8 and is now 10: from step 8 on" in caplog.text
    # Cosine with a warm-up of one step: at its end before, and 2 of 9 steps from its new end now.
    after = 5e-3 * 0.5 * (1 + math.cos(math.pi * 7 / 9))
    assert f"the learning rate goes from 0 to {after:.3g}, and layer dropout" in caplog.text


def test_a_run_cannot_be_made_shorter_than_it_is(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    before = (run_dir / "config.yaml").read_bytes()
    with pytest.raises(
        ConfigError, match=r"train\.max_steps: must be at least 8, .*\(got 5\); set train.max_steps=8"
    ):
        run.train(with_train(cfg, max_steps=5))
    assert "where the run stands" not in caplog.text
    assert (run_dir / "config.yaml").read_bytes() == before
    assert checkpoints.CheckpointStore(run_dir, 0).steps() == [3, 6, 8]


def test_the_end_of_a_run_may_come_earlier_than_planned(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    shutil.rmtree(run_dir / "checkpoints" / "step-8")
    cfg.optim = OptimConfig(name="muon")
    check_same_run(cfg, identity(with_train(cfg, max_steps=20)), 6)
    assert "the learning rate goes from 0.00419 to 0.000941" in caplog.text
    assert "the learning rate of Muon goes from 0.0168 to 0.00377" in caplog.text


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rate_said_is_the_rate_of_the_optimizer(tmp_path: Path, name: str) -> None:
    cfg = tiny_root(tmp_path, max_steps=10, warmup_steps=0.2, lr_scheduler=name)
    args = training_arguments(cfg, tmp_path)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    trainer = Trainer(model=torch.nn.Linear(1, 1), args=args)
    schedule = trainer.create_scheduler(10, optimizer)
    for step in range(10):
        assert schedule.get_last_lr()[0] == pytest.approx(rate_share(cfg.train, 10, step))
        optimizer.step()
        schedule.step()


def test_resume_never_starts_anew_and_keeps_the_old_run(whole: Path, tmp_path: Path) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    run.train(replace(with_train(cfg, max_steps=2, learning_rate=1e-3), resume="never"))
    assert checkpoints.CheckpointStore(run_dir, 0).steps() == [2]
    assert_same_run(whole, run_dir.with_name("default.previous-1"))


def test_resume_never_gives_the_old_run_back_when_the_new_one_cannot_start(
    whole: Path, tmp_path: Path
) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(DataError):
        run.train(replace(cfg, resume="never", data=replace(cfg.data, path=str(empty))))
    assert_same_run(whole, run_dir)
    assert [path.name for path in run_dir.parent.iterdir() if path.is_dir()] == ["default"]


def test_another_kind_of_data_is_one_problem_and_its_keys_are_none(whole: Path, tmp_path: Path) -> None:
    cfg, _ = copied(whole, tmp_path)
    with pytest.raises(ConfigError) as caught:
        run.train(replace(cfg, data=StdlibTextConfig(block_size=24, tokenizer_vocab=300)))
    assert [problem.key for problem in caught.value.problems] == ["data.kind"]
    assert "choose data as before" in str(caught.value)


def test_a_validation_cut_off_by_a_kill_is_made_up_for(whole: Path, tmp_path: Path) -> None:
    cfg, run_dir = copied(whole, tmp_path)
    shutil.rmtree(run_dir / "checkpoints" / "step-8")
    record = run_dir / "checkpoints" / "step-6" / "ssd.json"
    complete = json.loads(record.read_text())
    record.write_text(
        json.dumps({name: complete[name] for name in complete if name not in ("tau_sim", "exit_agreement")})
    )
    assert_same_run(whole, run.train(cfg))
    assert json.loads(record.read_text())["exit_agreement"] == complete["exit_agreement"]


def test_two_commands_do_not_share_a_run_directory(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    with run._locked(cfg.run_dir), pytest.raises(SSDError, match="another process is training"):
        run.train(cfg)


def test_a_full_disk_leaves_the_previous_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = tiny_root(tmp_path)
    room = shutil.disk_usage(tmp_path)
    seal = checkpoints.seal

    def fill(directory: Path) -> None:
        seal(directory)
        if directory.name.endswith("step-3"):
            monkeypatch.setattr(shutil, "disk_usage", lambda _path: room._replace(free=0))

    monkeypatch.setattr(checkpoints, "seal", fill)
    with pytest.raises(CheckpointError, match=r"step 6 .*no space left on the disk.*step-3, is untouched"):
        run.train(cfg)
    monkeypatch.undo()
    store = checkpoints.CheckpointStore(cfg.run_dir, 3)
    assert store.steps() == [3]
    assert store.latest() == store.path(3)
    assert not list(store.directory.glob(".*"))
