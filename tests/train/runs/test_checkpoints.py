"""The store on its own: atomic, verified, pruned, ranked."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.checkpoint.manifest import damage, read_record
from ssd_infer.errors import CheckpointError
from ssd_infer.report.write import write_report
from ssd_train.distributed.engine_trainer import rank_files
from ssd_train.runs.checkpoints import CheckpointStore, require_space, seal
from tests.report.sample import measured_row, sample_report


def write(directory: Path) -> None:
    step = int(directory.name.rpartition("-")[2])
    (directory / "weights.bin").write_bytes(b"12345678")
    (directory / "ssd.json").write_text(json.dumps({"step": step}))
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def save(store: CheckpointStore, step: int, tau: float | None = None, loss: float = 1.0) -> None:
    store.save(step, write, main=True, wait=lambda: None)
    if tau is not None:
        store.annotate(step, {"tau_sim": tau, "validation_loss": loss})


def test_a_saved_checkpoint_is_complete_and_intact(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2)
    assert store.latest() is None
    save(store, 10)
    save(store, 9)
    assert store.steps() == [9, 10]
    assert store.latest() == tmp_path / "checkpoints" / "step-10"
    assert damage(store.path(10)) is None


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("weights.bin", b"1234567", "has 7 bytes instead of 8"),
        ("weights.bin", b"12345679", "does not have the hash"),
        ("weights.bin", None, "weights.bin is missing"),
        ("ssd_manifest.json", b"{", "no readable ssd_manifest.json"),
        ("ssd.json", b"", "no readable ssd.json"),
    ],
)
def test_damage_is_named(tmp_path: Path, file: str, content: bytes | None, complaint: str) -> None:
    store = CheckpointStore(tmp_path, 2)
    save(store, 1)
    if content is None:
        (store.path(1) / file).unlink()
    else:
        (store.path(1) / file).write_bytes(content)
    assert complaint in str(damage(store.path(1)))
    with pytest.raises(CheckpointError, match="resume=never"):
        store.latest()
    save(store, 1)
    assert store.latest() == store.path(1)


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2)
    for step, tau in ((1, 1.5), (2, 2.5), (3, 2.0), (4, 2.1), (5, 2.2)):
        save(store, step, tau)
    assert store.steps() == [2, 4, 5]
    assert store.best() == store.path(2)
    best = json.loads((tmp_path / "best.json").read_text())
    assert (best["step"], best["metric"], best["value"]) == (2, "tau_sim", 2.5)
    assert not list(store.directory.glob(".*"))


def test_damaged_checkpoints_never_push_out_the_good_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    for step, tau in ((1, 1.0), (2, 1.1), (3, 9.0)):
        save(store, step)
        store.annotate(step, {"tau_sim": tau, "validation_loss": 1.0})
    store = CheckpointStore(tmp_path, 0)
    save(store, 2)
    (store.path(3) / "weights.bin").unlink()
    assert store.latest() == store.path(2)
    store.set_aside_after(2)
    again = CheckpointStore(tmp_path, 1)
    assert again.steps() == [2]
    save(again, 3, 1.2)
    assert again.latest() == again.best() == again.path(3)
    assert sorted(path.name for path in again.directory.iterdir()) == ["damaged-step-3", "step-3"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_validation_without_a_number_cannot_be_the_best(tmp_path: Path, loss: float) -> None:
    store = CheckpointStore(tmp_path, 0)
    save(store, 1, 1.0, loss)
    assert store.best() is None
    save(store, 2, 2.0, 3.0)
    save(store, 3, float("nan"), 3.0)
    assert store.best() == store.path(2)


def test_keep_last_zero_keeps_all(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 0)
    for step in range(5):
        save(store, step, 1.0)
    assert store.steps() == [0, 1, 2, 3, 4]


def test_a_checkpoint_with_a_much_higher_loss_cannot_be_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 0)
    for step, tau, loss in ((1, 4.9, 6.0), (2, 2.0, 3.0), (3, 2.4, 3.05), (4, 2.6, 3.2)):
        save(store, step, tau, loss)
    assert store.best() == store.path(3)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), RuntimeError("No space left on device (os error 28)")]
)
def test_a_full_disk_is_explained_and_nothing_half_written_stays(tmp_path: Path, error: Exception) -> None:
    store = CheckpointStore(tmp_path, 2)
    save(store, 1)

    def fail(directory: Path) -> None:
        write(directory)
        raise error

    with pytest.raises(
        CheckpointError, match=r"no space left on the disk; the last one, .*step-1, is untouched; free some"
    ):
        store.save(2, fail, main=True, wait=lambda: None)
    assert [path.name for path in store.directory.iterdir()] == ["step-1"]
    assert damage(store.path(1)) is None


def test_any_other_failure_keeps_its_reason(tmp_path: Path) -> None:
    def fail(_directory: Path) -> None:
        raise ValueError("odd tensor")

    with pytest.raises(CheckpointError, match="ValueError: odd tensor; there is no earlier one"):
        CheckpointStore(tmp_path, 2).save(2, fail, main=True, wait=lambda: None)


def test_space_is_asked_for_before_writing(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(OSError, match="needs about"):
        require_space(tmp_path, 1 << 60)


def report_of(run: Path, step: int, speedup: float, **changes: Any) -> None:
    """Write a report of `step` whose best row is early_exit at this speedup; `changes` go into the row."""
    row = measured_row("early_exit", speedup, 0.6, **changes)
    report = sample_report()
    report["strategies"] = [row, *(line for line in report["strategies"] if line["status"] != "ok")]
    report["verdict"] |= {"best_strategy": "early_exit", "speedup": speedup}
    write_report(report, run / "reports" / f"step-{step}")


def test_a_measured_speedup_makes_the_best_where_there_is_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 0)
    for step, tau, loss in ((1, 2.5, 3.0), (2, 2.1, 3.0), (3, 2.0, 3.0), (4, 2.9, 9.0)):
        save(store, step, tau, loss)
    for step, speedup in ((2, 1.4), (3, 1.6), (4, 4.0)):
        report_of(tmp_path, step, speedup)
    assert store.mark_best() == store.best() == store.path(3)
    facts = store.best_facts()
    assert (facts["metric"], facts["value"], facts["strategy"]) == ("speedup", 1.6, "early_exit")
    assert (facts["step"], facts["tau_sim"], facts["validation_loss"]) == (3, 2.0, 3.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": {"fell_back_to_plain": True}},
        {
            "speed": {
                "tokens_per_second": 9.0,
                "speedup": 1.1,
                "ci95": [0.9, 1.3],
                "predicted_speedup": 1,
                "against": "",
            }
        },
    ],
)
def test_a_report_without_a_sure_gain_makes_no_best(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = CheckpointStore(tmp_path, 0)
    for step, tau in ((1, 2.5), (2, 2.1)):
        save(store, step, tau, 3.0)
    report_of(tmp_path, 2, 1.1, **changes)
    assert store.mark_best() == store.path(1)
    assert store.best_facts()["metric"] == "tau_sim"
    (tmp_path / "reports" / "step-2" / "report.json").write_text("{")
    assert store.mark_best() == store.path(1)


STRANGE = ("step-007", "step-²", "step-٣", "step-", "step-+5", "step-1_0", "step-3.bak", "step--1")


def test_only_names_that_rebuild_to_themselves_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, 1)
    for name in STRANGE:
        (store.directory / name).mkdir(parents=True)
    assert store.latest() is None
    for step in (3, 7, 10):
        save(store, step, 2.0)
    assert store.steps() == [10]
    assert store.latest() == store.path(10)
    assert {path.name for path in store.directory.iterdir()} == {*STRANGE, "step-10"}
    for name in STRANGE:
        assert f"{store.directory / name}: its name is not one" in caplog.text


def test_a_renamed_copy_is_not_believed_and_not_destroyed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, 0)
    for step, tau in ((10, 1.0), (20, 9.0)):
        save(store, step, tau)
    shutil.copytree(store.path(20), store.path(30))
    shutil.copytree(store.path(20), store.path(5))
    assert store.steps() == [10, 20]
    assert store.latest() == store.best() == store.path(20)
    assert f"{store.path(30)}: it holds step 20, so it is a renamed copy" in caplog.text
    save(store, 30, 1.0)
    assert store.latest() == store.path(30)
    assert read_record(store.directory / "foreign-step-30")["step"] == 20
    assert read_record(store.path(5))["step"] == 20


def test_the_state_training_goes_on_from_must_agree_as_well(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 0)
    save(store, 10)
    save(store, 20)
    (store.path(20) / "trainer_state.json").write_text('{"global_step": 10}')
    seal(store.path(20))
    assert store.latest() == store.path(10)


def test_a_run_whose_only_checkpoint_was_renamed_does_not_begin_anew_without_a_word(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 0)
    save(store, 20)
    store.path(20).rename(store.path(30))
    with pytest.raises(CheckpointError, match="step-30: it holds step 20"):
        store.latest()
    store.path(30).rename(store.directory / "step-020")
    with pytest.raises(CheckpointError, match="step-020: its name is not one"):
        store.latest()


def test_a_file_in_a_checkpoints_place_is_moved_aside(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 0)
    store.directory.mkdir()
    store.path(1).write_text("notes")
    save(store, 1)
    assert store.latest() == store.path(1)
    assert (store.directory / "foreign-step-1").read_text() == "notes"


def test_copies_of_a_ranks_file_are_not_counted(tmp_path: Path) -> None:
    for name in ("0-s.json", "1-s.json", "10-s.json", "2-s.json", "00-s.json", "copy-s.json", "²-s.json"):
        (tmp_path / name).touch()
    assert [path.name for path in rank_files(tmp_path, "s.json")] == [
        "0-s.json",
        "1-s.json",
        "2-s.json",
        "10-s.json",
    ]


@pytest.mark.parametrize("content", ["[]", '{"files": []}', '"x"'])
def test_a_manifest_of_another_shape_is_damage(tmp_path: Path, content: str) -> None:
    store = CheckpointStore(tmp_path, 0)
    save(store, 1)
    (store.path(1) / "ssd_manifest.json").write_text(content)
    assert damage(store.path(1)) == "has no readable ssd_manifest.json"
