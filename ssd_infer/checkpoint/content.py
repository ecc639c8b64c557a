"""Identity by content: all bytes of files and tensors, never their names, sizes, times or a sample of them.

Nothing is remembered between starts. Size and time of change can stay while bytes do not (a restored time, a clock set
back, two writes in one tick, a shared disk), and a whole hash costs less than reading the file does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ssd_infer.errors import DataError

_PIECE = 1 << 20


def loaded_from(config: Any) -> Path | None:
    """Return the directory that a model of this configuration was loaded from, or None."""
    path = str(getattr(config, "_name_or_path", "") or "")
    return Path(path) if path and Path(path).is_dir() else None


def is_added(name: str) -> bool:
    """Tell whether a file of this name holds what was found out about a model, and was put beside its weights."""
    return name.startswith("ssd_")


def file_digest(path: Path) -> str:
    """Return a hash of every byte of `path` (XXH3, 128 bits); raises OSError."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def files_digest(files: Iterable[Path], key: str, root: Path | None = None) -> str:
    """Return a hash of the content of `files` in order, and with `root` of their names below it.

    Raises DataError, which names `key`, for a file that cannot be read.
    """
    digest = xxhash.xxh3_128()
    for path in files:
        name = "" if root is None else path.relative_to(root).as_posix()
        try:
            digest.update(f"{name}\0{file_digest(path)}\0".encode())
        except OSError as error:
            raise DataError(
                f"{key}: {path} cannot be read ({error.strerror or error}); check that it is there and its permissions"
            ) from error
    return digest.hexdigest()


def folder_digest(folder: Path, key: str, chosen: Callable[[str], bool] = lambda _: True) -> str:
    """Return a hash of names and content of the files below `folder` whose name is `chosen`, links followed.

    Hidden files and `datasets`' own caches are passed over: they are nobody's data.
    """
    found = [path for path in _walk(folder) if chosen(path.name)]
    return files_digest(sorted(found), key, folder)


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            cache = name.startswith("cache-") and name.endswith(".arrow")
            if not (name.startswith(".") or cache):
                yield Path(root) / name


def text_digest(parts: Iterable[object]) -> str:
    """Return a hash of the representations of `parts`."""
    return xxhash.xxh3_128(repr(list(parts)).encode("utf-8", "surrogatepass")).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """Return a hash of names, shapes, types and all values of the parameters of `model`.

    It is remembered while torch's own count of changes says that every parameter is what it was; torch counts every
    operation in place, but for those on `.data`.
    """
    state = _state(model)
    known = _digests.get(model)
    if known is not None and state is not None and known[0] == state:
        return known[1]
    digest = xxhash.xxh3_128()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for piece in _pieces(weight):
            digest.update(piece)
    _digests[model] = (state, digest.hexdigest())
    return digest.hexdigest()


_State = list[tuple[str, int, int]]
_digests: weakref.WeakKeyDictionary[nn.Module, tuple[_State | None, str]] = weakref.WeakKeyDictionary()


def _state(model: nn.Module) -> _State | None:
    """Return place and count of changes of every parameter; None where torch keeps no count."""
    weights = list(model.named_parameters())
    if any(weight.is_inference() for _, weight in weights):
        return None
    return [(name, weight.data_ptr(), weight._version) for name, weight in weights]


def _pieces(weight: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of `weight`, a few megabytes at a time; none where only its shape is known.

    Quantised weights may be tensors made of others: the bytes are those of its parts.
    """
    if weight.is_meta:
        return
    parts: Any = weight
    if is_traceable_wrapper_subclass(parts):
        for name in parts.__tensor_flatten__()[0]:
            yield from _pieces(getattr(parts, name))
        return
    for part in weight.detach().reshape(-1).split(_PIECE):
        yield memoryview(part.contiguous().cpu().view(torch.uint8).numpy())
