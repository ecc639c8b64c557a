"""Text files are replaced whole, or stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_infer import atomic
from ssd_infer.atomic import write_text


def test_replacing_a_text_leaves_nothing_aside(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "one")
    write_text(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_interrupted_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
