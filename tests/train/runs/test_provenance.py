"""Where a checkpoint comes from, inside a repository, outside one, and without git."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ssd_infer.checkpoint.provenance import git_state
from ssd_infer.version import __version__
from ssd_train.config.schema import Root, ScratchModelConfig, StdlibTextConfig
from ssd_train.recipes.plain.settings import PlainConfig
from ssd_train.runs import provenance


def run(**values: object) -> Root:
    return Root(
        recipe_name="t",
        model=ScratchModelConfig(),
        data=StdlibTextConfig(),
        recipe=PlainConfig(),
        **values,  # type: ignore[arg-type]
    )


def git(where: Path, *command: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, "-C", str(where), *command], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_the_record_is_json_and_names_command_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/ssd_train/__main__.py", "+recipe=plain", "seed=3"])
    record = json.loads(json.dumps(provenance.collect(run(seed=3), "abc")))
    assert record["command"] == "python -m ssd_train +recipe=plain seed=3"
    assert record["tokenizer_hash"] == "abc"
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["versions"]["torch"].startswith("2.")
    assert record["versions"]["ssd"] == __version__
    assert record["machine"]["cores"] >= 1


def test_the_config_hash_follows_every_value() -> None:
    first = provenance.config_hash(run())
    assert provenance.config_hash(run()) == first
    assert provenance.config_hash(run(seed=1)) != first
    deeper = dataclasses.replace(run(), model=ScratchModelConfig(num_layers=17))
    assert provenance.config_hash(deeper) != first


def test_a_clean_and_a_dirty_checkout(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert git_state(repository / "package") == {"sha": head, "dirty": False}
    (repository / "package" / "untracked.py").write_text("")
    assert git_state(repository / "package")["dirty"] is False
    (repository / "package" / "a.py").write_text("x = 2\n")
    assert git_state(repository / "package") == {"sha": head, "dirty": True}


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None


def test_a_package_installed_inside_someone_elses_checkout_is_not_that_checkout(repository: Path) -> None:
    installed = repository / ".venv" / "ssd_train"
    installed.mkdir(parents=True)
    assert git_state(installed) is None


def test_a_machine_without_git_is_no_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
    assert provenance.collect(run())["git"] == {"sha": None, "dirty": None}
