"""CTranslate2 files: every type is read, and whatever is cut, contradicts itself or is another thing is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scripts.fetching import ctranslate2
from scripts.fetching.ctranslate2 import Variables
from ssd_infer.errors import CheckpointError
from tests.scripts.ctranslate2_files import TYPES, encode, variable

TENSORS = {
    "matrix": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "scalar": torch.tensor(7, dtype=torch.int16),
    **{f"of_{str(dtype).removeprefix('torch.')}": torch.tensor([1, -2, 3]).to(dtype) for dtype in TYPES},
}
ALIASES = {"other": "matrix"}


def _read(tmp_path: Path, content: bytes) -> Variables:
    (tmp_path / "model.bin").write_bytes(content)
    return ctranslate2.read(tmp_path / "model.bin", "WhisperSpec", 3)


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and found[name].shape == tensor.shape and found[name].equal(tensor)
        for name, tensor in expected.items()
    )


def test_every_type_and_shape_is_read(tmp_path: Path) -> None:
    found = _read(tmp_path, encode(TENSORS, ALIASES))
    assert _same(found.tensors, TENSORS)
    assert found.aliases == ALIASES


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = encode(TENSORS, ALIASES)
    for length in range(len(whole)):
        with pytest.raises(CheckpointError, match=r"model\.bin: "):
            _read(tmp_path, whole[:length])


def test_a_file_with_a_flipped_bit_is_read_or_refused_in_words(tmp_path: Path) -> None:
    whole = encode(TENSORS, ALIASES)
    refused = 0
    for position in range(len(whole)):
        for bit in (0, 3, 7):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            try:
                _read(tmp_path, bytes(damaged))
            except CheckpointError:
                refused += 1
    assert refused > len(whole)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "ends inside the binary version: 4 bytes wanted at 0, 0 are left"),
        (encode(TENSORS, version=7), "binary version 7, only 6 is read"),
        (encode(TENSORS, ALIASES, revision=2), "'WhisperSpec' revision 2, expected 'WhisperSpec' revision 3"),
        (encode(TENSORS, ALIASES, specification="TransformerSpec"), "it is 'TransformerSpec' revision 3"),
        (encode(TENSORS, ALIASES) + b"\0", "1 bytes follow where the file should end"),
        (encode(TENSORS, {"other": "nothing"}), "the alias other for nothing does not fit"),
        (encode(TENSORS, {"scalar": "matrix"}), "the alias scalar for matrix does not fit"),
        (encode({"a\nb": torch.ones(1)}, {}), "is no name"),
        (encode({"": torch.ones(1)}, {}), "is no name"),
        (encode({"e": torch.ones(0)}, {}), r"e of shape \[0\]"),
        (encode({"e": torch.ones(1, 1, 1, 1, 1)}, {}), "e has 5 dimensions, at most 4"),
    ],
)
def test_what_is_another_thing_is_refused_in_words(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        _read(tmp_path, content)


def test_a_variable_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    one = {"a": torch.ones(2), "b": torch.ones(2)}
    content = encode(one, {}).replace(variable("b", one["b"]), variable("a", one["a"]))
    with pytest.raises(CheckpointError, match="a is there twice"):
        _read(tmp_path, content)


@pytest.mark.parametrize(
    ("shape", "kind", "length", "said"),
    [
        ([2, 3], 4, 10, r"a of shape \[2, 3\] and type torch\.float16 cannot have 10 bytes"),
        ([65536, 65536, 65536, 65536], 0, 0, "cannot have 0 bytes"),
        ([1 << 31], 0, (1 << 32) - 4, "cannot have 4294967292 bytes"),
        ([1 << 30], 1, 1 << 30, "the file ends inside a"),
        ([2], 9, 8, "a has the unknown type 9"),
    ],
)
def test_lengths_are_checked_before_memory_is_taken(
    tmp_path: Path, shape: list[int], kind: int, length: int, said: str
) -> None:
    lie = b"\x02\0a\0" + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, length) + bytes(64)
    content = encode({"a": torch.ones(1)}, {})
    start = content.index(b"\x02\0a\0")
    with pytest.raises(CheckpointError, match=said):
        _read(tmp_path, content[:start] + lie)
