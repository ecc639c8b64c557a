"""Evaluations in a process of their own: what goes in, what comes out, and what does not live in it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import CheckpointError, ConfigError, DataError, SSDError
from ssd_infer.evaluation import alone
from ssd_infer.evaluation.alone import environment_alone, evaluate_alone, rebuilt
from ssd_infer.evaluation.progress import spinner
from ssd_infer.threads import wait_passively
from tests.conftest import build_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "model"
    build_model(layers=3).save_pretrained(folder)
    rows = [json.dumps({"ids": [5 + (7 * i * j + j) % 90 for j in range(8)]}) for i in range(1, 4)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    return folder


def settings(folder: Path, **changes: Any) -> EvalSettings:
    base: dict[str, Any] = {
        "checkpoint": str(folder),
        "tasks": [f"file:{folder}/prompts.jsonl"],
        "samples": 2,
        "max_new_tokens": 8,
        "temperatures": [0.0],
        "draft": "early_exit",
        "draft_params": {"exit_layer": 1, "gamma": 2},
        "grid": False,
        "peers": False,
        "device": "cpu",
        "threads": 1,
    }
    return EvalSettings(**(base | changes))


def test_a_report_is_made_by_another_process_that_waits_asleep(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(sys, "argv", ["/x/ssd_train/__main__.py", "+recipe=layerskip"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ssd_infer.evaluation.evaluate", lambda *_: pytest.fail("measured in this process"))
    said: list[str] = []
    report = evaluate_alone(settings(checkpoint, out=str(tmp_path / "r")), said.append)
    assert report["environment"]["extra"] == {"openmp_waits": "passive"}
    assert report["identity"]["command"] == "python -m ssd_train +recipe=layerskip"
    assert (tmp_path / "r" / "report.json").is_file()
    assert any("decoding with" in line for line in said)


def test_an_error_of_the_other_process_is_raised_here(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer"):
        evaluate_alone(settings(checkpoint, tasks=["stdlib_code"], out=str(tmp_path / "r")))


def test_a_process_that_dies_is_an_error_with_its_code(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SSDError, match="ended with code 1"):
        evaluate_alone(settings(checkpoint, out=str(tmp_path / "r")))


def test_what_is_raised_while_listening_ends_the_process(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def remember(*given: Any, **more: Any) -> subprocess.Popen[str]:
        started.append(real(*given, **more))
        return started[-1]

    monkeypatch.setattr(alone.subprocess, "Popen", remember)

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_alone(settings(checkpoint, out=str(tmp_path / "r")), interrupt)
    assert started[0].poll() is not None
    assert not (tmp_path / "r").exists()


def test_errors_keep_their_kind_and_words() -> None:
    assert type(rebuilt("CheckpointError", "x")) is CheckpointError
    for kind in ("ConfigError", "Problem", "nonsense"):
        found = rebuilt(kind, "a\nb")
        assert type(found) is SSDError
        assert str(found) == "a\nb"
    assert issubclass(ConfigError, SSDError)


def test_the_environment_holds_no_rank_and_keeps_what_was_set() -> None:
    given = {
        "RANK": "1",
        "ACCELERATE_USE_FSDP": "1",
        "OMP_WAIT_POLICY": "ACTIVE",
        "HOME": "/h",
        "PYTHONPATH": "/p",
    }
    found = environment_alone(given)
    assert found["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "KMP_BLOCKTIME" not in found  # the user has said how threads wait
    del given["OMP_WAIT_POLICY"]
    assert environment_alone(given)["KMP_BLOCKTIME"] == "0"
    assert found["HOME"] == "/h"
    assert found["PYTHONPATH"].split(os.pathsep)[1:] == ["/p"]
    assert not {"RANK", "ACCELERATE_USE_FSDP"} & set(found)


def test_nothing_waits_otherwise_once_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert "torch" in sys.modules
    assert not wait_passively()
    assert "OMP_WAIT_POLICY" not in os.environ


def test_the_entry_point_asks_before_torch_is_imported() -> None:
    code = (
        "import os, sys, ssd_infer.__main__ as entry\n"
        "assert 'torch' not in sys.modules\n"
        "entry.launch = lambda *_: print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules) or 0\n"
        "sys.argv = ['ssd_infer', 'checkpoint=x']\n"
        "entry.main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["PASSIVE", "False"]


def test_no_thread_redraws_the_terminal_while_something_is_measured() -> None:
    before = set(threading.enumerate())
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with spinner(console) as say:
        say("decoding")
        assert set(threading.enumerate()) == before
    assert "decoding" in console.file.getvalue()  # type: ignore[attr-defined]
