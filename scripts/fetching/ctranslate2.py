"""Read the weights of a CTranslate2 model file (`model.bin`, binary version 6); lengths are checked before use.

All numbers are little-endian; a name is a 16-bit length and that many bytes, the last of them zero. The file is: 32-bit
binary version, name of the specification, 32-bit revision, 32-bit count, then `count` variables, then a 32-bit count of
aliases, each a pair of names (the alias, the variable it stands for). A variable is its name, an 8-bit rank, one 32-bit
number for each dimension, an 8-bit type, a 32-bit length in bytes, and its content in row-major order.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ssd_infer.errors import CheckpointError

BINARY_VERSION = 6
MAX_RANK = 4
TYPES = {
    0: torch.float32,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.float16,
    5: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of a model file by name, and which names stand for which."""

    tensors: dict[str, Tensor]
    aliases: dict[str, str]


def read(path: Path, specification: str, revision: int) -> Variables:
    """Return what is in the file; tensors are copies in the file's own types, numbers are tensors of no dimension.

    Raises CheckpointError for a file that is of another version, specification or revision, ends too early, goes on
    after its end, or contradicts itself.
    """
    reader = _Reader(path)
    version = reader.number("I", "the binary version")
    if version != BINARY_VERSION:
        raise reader.error(
            f"the file has binary version {version}, only {BINARY_VERSION} is read; is it CTranslate2's?"
        )
    found = reader.name("the specification"), reader.number("I", "the revision")
    if found != (specification, revision):
        raise reader.error(
            f"it is {found[0]!r} revision {found[1]}, expected {specification!r} revision {revision}"
        )
    tensors: dict[str, Tensor] = {}
    for _ in range(reader.number("I", "the number of variables")):
        name = reader.name("the name of a variable")
        if name in tensors:
            raise reader.error(f"{name} is there twice")
        tensors[name] = reader.tensor(name)
    aliases: dict[str, str] = {}
    for _ in range(reader.number("I", "the number of aliases")):
        alias, name = reader.name("an alias"), reader.name("what an alias stands for")
        if name not in tensors or alias in tensors or alias in aliases:
            raise reader.error(f"the alias {alias} for {name} does not fit the variables")
        aliases[alias] = name
    reader.end()
    return Variables(tensors, aliases)


class _Reader:
    """A file's bytes and how far they have been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = memoryview(path.read_bytes())
        self.position = 0

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path.name}: {what}")

    def take(self, count: int, what: str) -> memoryview:
        """Return the next `count` bytes; raises CheckpointError where the file has fewer."""
        left = len(self.content) - self.position
        if count > left:
            raise self.error(
                f"the file ends inside {what}: {count} bytes wanted at {self.position}, {left} are left"
            )
        self.position += count
        return self.content[self.position - count : self.position]

    def number(self, form: str, what: str) -> int:
        value: int = struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))[0]
        return value

    def name(self, what: str) -> str:
        raw = bytes(self.take(self.number("H", what), what))
        try:
            text = raw[:-1].decode("ascii")
        except UnicodeDecodeError:
            text = ""
        if raw[-1:] != b"\0" or not text.isprintable() or not text:
            raise self.error(f"{what} before byte {self.position} is no name ({raw[:40]!r})")
        return text

    def tensor(self, name: str) -> Tensor:
        """Return the next tensor; raises CheckpointError where shape, type and length do not agree."""
        rank = self.number("B", name)
        if rank > MAX_RANK:
            raise self.error(f"{name} has {rank} dimensions, at most {MAX_RANK} are possible")
        shape = [self.number("I", name) for _ in range(rank)]
        kind, length = self.number("B", name), self.number("I", name)
        if kind not in TYPES:
            raise self.error(f"{name} has the unknown type {kind}")
        dtype = TYPES[kind]
        if math.prod(shape) * dtype.itemsize != length or not length:
            raise self.error(f"{name} of shape {shape} and type {dtype} cannot have {length} bytes")
        return torch.frombuffer(bytearray(self.take(length, name)), dtype=dtype).reshape(shape)

    def end(self) -> None:
        if self.position != len(self.content):
            raise self.error(f"{len(self.content) - self.position} bytes follow where the file should end")
