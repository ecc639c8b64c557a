"""The script that fetches a pretrained model says what it needs before it downloads anything."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts.load import load_script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script with `gguf` there, and a download and a conversion that only note that they happened."""
    found = load_script("fetch_smollm2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return found


def _offline(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace download and conversion; return where they note that they ran."""
    ran: list[str] = []

    def download(folder: Path) -> Path:
        ran.append("download")
        (folder / "model.gguf").write_bytes(b"weights")
        return folder / "model.gguf"

    def convert(gguf: Path, out: Path) -> None:
        assert gguf.read_bytes() == b"weights"
        ran.append("convert")
        out.mkdir()
        (out / "config.json").write_text("{}")

    monkeypatch.setattr(script, "download", download)
    monkeypatch.setattr(script, "convert", convert)
    return ran


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = _offline(script, monkeypatch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert script.main([str(tmp_path / "model")]) == 2
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split())
    assert "make smollm2" in text
    assert "ssd-toolkit[models]" in text
    assert not ran
    assert not list(tmp_path.iterdir())


def test_the_checkpoint_appears_whole(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = _offline(script, monkeypatch)
    assert script.main([str(tmp_path / "models" / "smollm2")]) == 0
    assert ran == ["download", "convert"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2"]


def test_a_broken_conversion_leaves_nothing(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _offline(script, monkeypatch)

    def convert(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(script, "convert", convert)
    assert script.main([str(tmp_path / "smollm2")]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["file", "full", "disk", "unwritable"])
def test_what_would_fail_later_is_refused_before_the_download(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    ran, out = _offline(script, monkeypatch), tmp_path / "out"
    if what == "file":
        out.write_text("text")
    if what == "full":
        out.mkdir()
        (out / "config.json").write_text("{}")
    if what == "disk":
        usage = shutil._ntuple_diskusage(10, 5, 5)  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    if what == "unwritable":
        (tmp_path / "file").write_text("text")
        out = tmp_path / "file" / "out"
    assert script.main([str(out)]) == 2
    assert not ran
