"""Documents in their marks joined, cut into blocks of one length, and kept on disk as one array of integers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ssd_infer.errors import DataError
from ssd_train.data.framing import Encoder
from ssd_train.data.sources import Passage

_BATCH_CHARACTERS = 1 << 20


class PackedBlocks(Dataset[dict[str, torch.Tensor]]):
    """Blocks `[block_size]` of a token file in the given order; the file is mapped, not read into memory."""

    def __init__(self, path: Path, dtype: str, block_size: int, order: np.ndarray) -> None:
        self.path, self.dtype, self.block_size, self.order = path, dtype, block_size, order
        self._tokens = np.memmap(path, dtype=dtype, mode="r")

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = int(self.order[index]) * self.block_size
        block = self._tokens[start : start + self.block_size]
        return {"input_ids": torch.from_numpy(block.astype(np.int64))}

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_tokens"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._tokens = np.memmap(self.path, dtype=self.dtype, mode="r")

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all blocks."""
        return len(self.order) * self.block_size


def write_tokens(
    passages: Iterator[Passage],
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    encoder: Encoder | None = None,
) -> int:
    """Encode `passages` into the integer file `path`, each document in its marks; return the token count.

    The file appears under its name only when complete.
    """
    encoder = encoder or Encoder(tokenizer)
    partial = path.with_suffix(f".{os.getpid()}.part")
    dtype = token_dtype(tokenizer)
    total = 0
    try:
        with partial.open("wb") as file:
            for row in _rows(passages, encoder):
                array = np.asarray(row, dtype=dtype)
                file.write(array.tobytes())
                total += array.size
        partial.replace(path)
    except OSError as error:
        raise DataError(
            f"data.cache_dir: the tokenized data cannot be written (got {path.parent}: {error.strerror}); "
            "free space or set data.cache_dir to another disk"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return total


def _rows(passages: Iterator[Passage], encoder: Encoder) -> Iterator[list[int]]:
    """Yield the ids of each passage; where end and begin are one token, one of them stands between two documents."""
    begins, shared = True, encoder.begin == encoder.end
    for number, (item, ids) in enumerate(_encoded(passages, encoder)):
        begin = encoder.begin if begins and not (shared and number) else []
        yield [*begin, *ids, *(encoder.end if item.ends else [])]
        begins = item.ends


def _encoded(passages: Iterator[Passage], encoder: Encoder) -> Iterator[tuple[Passage, list[int]]]:
    for batch in _batches(passages):
        yield from zip(batch, encoder.ids([item.text for item in batch]), strict=True)


def token_dtype(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the smallest integer type that holds every id of `tokenizer`."""
    return "uint16" if len(tokenizer) <= 1 << 16 else "int32"


def _batches(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
    """Group passages to about a million characters: enough for the tokenizer's threads, little memory."""
    batch: list[Passage] = []
    size = 0
    for item in passages:
        if not item.text:
            continue
        batch.append(item)
        size += len(item.text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
