"""The search command refuses what it could not finish before it begins."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

import ssd_infer
from ssd_infer.errors import ConfigError
from tests.scripts.load import load_script


@pytest.fixture(scope="module")
def command() -> ModuleType:
    return load_script("search_skip_set")


def test_all_bad_settings_are_named_together(command: ModuleType) -> None:
    with pytest.raises(ConfigError) as caught:
        command.parse(["ckpt", "method=grid", "seconds=nan", "trials=0", "sampling=maybe", "second=3"])
    assert {problem.key for problem in caught.value.problems} == {
        "method",
        "seconds",
        "trials",
        "sampling",
        "second",
    }


@pytest.mark.parametrize("seconds", ["0", "-3", "nan"])
def test_a_search_without_an_end_is_refused(command: ModuleType, seconds: str) -> None:
    with pytest.raises(ConfigError, match="seconds: must be > 0"):
        command.parse(["ckpt", f"seconds={seconds}"])


def test_a_place_that_takes_no_result_is_refused_before_anything_is_loaded(
    command: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.check_place(command.parse([str(tmp_path)]))
    monkeypatch.setattr(ssd_infer, "load", lambda *_, **__: pytest.fail("loaded first"))
    with pytest.raises(ConfigError, match="it is no folder here"):
        command.run(command.parse(["SomeHub/name"]))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="it is read-only"):
        command.check_place(command.parse([str(tmp_path)]))
    command.check_place(command.parse([str(tmp_path), "save=false"]))
