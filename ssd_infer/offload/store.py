"""Where experts come from: a file read past the page cache, or CPU memory."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from ssd_infer.errors import CheckpointError, ConfigError, Problem
from ssd_infer.offload.files import StoreIndex, read_index
from ssd_infer.offload.layout import MoeLayer

Key = tuple[int, int]
"""(decoder layer, expert)."""
Access = Literal["direct", "drop", "cached"]
_PAGE = 4096
_HUGE = 2 << 20
"""Bytes of a huge page where ordinary ones are 4 KiB."""


class ExpertStore(Protocol):
    """Experts by (layer, expert); `read` may be called from another thread than the one that computes."""

    shapes: tuple[tuple[int, int], tuple[int, int]]
    dtype: torch.dtype
    expert_bytes: int
    keys: tuple[Key, ...]

    def buffers(self, count: int) -> list[ExpertBuffer]:
        """Return room for `count` experts."""

    def read(self, key: Key, into: ExpertBuffer) -> None:
        """Fill `into` with the expert `key`; raises CheckpointError when it cannot be had whole."""


class ExpertBuffer:
    """Page-aligned memory for one expert; `matrices` are views of what was read last."""

    def __init__(self, arena: mmap.mmap, start: int, size: int) -> None:
        """Take `size` bytes of `arena` from `start` on."""
        self._arena, self._start = arena, start
        self.memory = memoryview(arena)[start : start + size]
        self.matrices: tuple[Tensor, Tensor] | None = None

    def expose(
        self, offset: int, shapes: tuple[tuple[int, int], tuple[int, int]], dtype: torch.dtype
    ) -> None:
        """Let `matrices` be what lies `offset` bytes into the memory."""
        parts = []
        offset += self._start
        for rows, columns in shapes:
            count = rows * columns
            flat = torch.frombuffer(self._arena, dtype=dtype, count=count, offset=offset)
            parts.append(flat.view(rows, columns))
            offset += count * dtype.itemsize
        self.matrices = parts[0], parts[1]


def reserve(count: int, size: int) -> list[ExpertBuffer]:
    """Return `count` buffers of at least `size` bytes, side by side in huge pages where the kernel grants them.

    A direct read into huge pages takes a quarter less time, since the disk is handed few long stretches of memory,
    and how long it takes no longer depends on where the kernel found its pages.
    """
    room = -(-size // _PAGE) * _PAGE
    total = count * room
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        arena, first = mmap.mmap(-1, total), 0
    else:
        arena = mmap.mmap(-1, total + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = -torch.frombuffer(arena, dtype=torch.uint8).data_ptr() % _HUGE
        with contextlib.suppress(OSError):  # a kernel without huge pages
            arena.madvise(mmap.MADV_HUGEPAGE, first, total)
    return [ExpertBuffer(arena, first + index * room, room) for index in range(count)]


class DiskStore:
    """Experts in a file of `files.write_store`.

    `direct` reads with O_DIRECT, so neither the page cache nor its memory takes part; `drop` reads through the cache
    and drops the pages at once, for file systems without direct reads; `cached` leaves them, for comparison only.
    """

    def __init__(self, folder: Path, access: Access = "direct") -> None:
        """Open the store in `folder`; raises CheckpointError when it is missing, damaged, or cannot be read so.

        Raises ConfigError for an `access` that does not exist.
        """
        if access not in get_args(Access):
            choices = f"choose from {', '.join(get_args(Access))}"
            raise ConfigError([Problem("experts.access", "is not a way to read", access, choices)])
        self.index: StoreIndex = read_index(folder)
        self.shapes, self.dtype = self.index.shapes, self.index.dtype
        self.expert_bytes = self.index.expert_bytes
        self.keys: tuple[Key, ...] = tuple(self.index.extents)
        self.access = access
        flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if access == "direct" else 0)
        try:
            self._file = os.open(self.index.path, flags)
        except OSError as error:
            hint = (
                "; this file system has no direct reads, use access='drop'"
                if error.errno == errno.EINVAL
                else ""
            )
            raise CheckpointError(
                f"experts.store: cannot open {str(self.index.path)!r} ({error.strerror}){hint}"
            ) from error
        self._closing = weakref.finalize(self, os.close, self._file)

    def buffers(self, count: int) -> list[ExpertBuffer]:
        """Return room for `count` experts; one that does not begin at a page is read with its neighbours' ends."""
        shifts = {extent.start % _PAGE for extent in self.index.extents.values()}
        return reserve(count, self.expert_bytes + max(shifts))

    def read(self, key: Key, into: ExpertBuffer) -> None:
        """Read one expert in as few calls as the kernel needs."""
        extent = self.index.extents[key]
        first = extent.start // _PAGE * _PAGE
        wanted = extent.start + extent.size - first
        span = -(-wanted // _PAGE) * _PAGE
        done = 0
        try:
            while done < wanted:
                got = os.preadv(self._file, [into.memory[done:span]], first + done)
                if got <= 0:
                    raise CheckpointError(self._short(key, done))
                done += got
            if self.access == "drop":
                os.posix_fadvise(self._file, first, span, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise CheckpointError(
                f"experts.store: expert {key[1]} of layer {key[0]} cannot be read from {str(self.index.path)!r} "
                f"({error.strerror}); no token was chosen without it; check the disk"
            ) from error
        into.expose(extent.start - first, self.shapes, self.dtype)

    def _short(self, key: Key, done: int) -> str:
        return (
            f"experts.store: {str(self.index.path)!r} ends inside expert {key[1]} of layer {key[0]} (after {done} "
            "bytes of it); the file was cut short while in use, and no token was chosen without it; write it again"
        )

    def close(self) -> None:
        """Close the file, which otherwise happens when nobody holds the store any more."""
        self._closing()


class MemoryStore:
    """Experts that stay in CPU memory, for a resident set on an accelerator."""

    def __init__(self, layers: list[MoeLayer]) -> None:
        """Take the matrices of `layers` as they are."""
        self._parts = {layer.index: layer.matrices for layer in layers}
        first, second = layers[0].matrices
        self.shapes = (tuple(first.shape[1:]), tuple(second.shape[1:]))  # type: ignore[assignment]
        self.dtype, self.expert_bytes = first.dtype, layers[0].expert_bytes
        self.keys: tuple[Key, ...] = tuple(
            (layer.index, expert) for layer in layers for expert in range(layer.num_experts)
        )

    shapes: tuple[tuple[int, int], tuple[int, int]]

    def buffers(self, count: int) -> list[ExpertBuffer]:
        """Return room for `count` experts."""
        return reserve(count, self.expert_bytes)

    def read(self, key: Key, into: ExpertBuffer) -> None:
        """Copy one expert."""
        into.expose(0, self.shapes, self.dtype)
        assert into.matrices is not None
        for here, there in zip(into.matrices, self._parts[key[0]], strict=True):
            here.copy_(there[key[1]])
