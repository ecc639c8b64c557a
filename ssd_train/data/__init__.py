"""Text to train on: a source, a tokenizer, and packed blocks of tokens."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.content import text_digest
from ssd_infer.checkpoint.steps import checkpoint_folders
from ssd_infer.errors import DataError
from ssd_infer.jsonio import to_json
from ssd_train.config.schema import DataConfig, Root
from ssd_train.data.framing import Encoder
from ssd_train.data.hub import COMMIT
from ssd_train.data.open_source import open_source
from ssd_train.data.packing import PackedBlocks, token_dtype, write_tokens
from ssd_train.data.sources import TextSource
from ssd_train.data.tokenizer import load_tokenizer, vocabulary_hash

__all__ = ["PackedBlocks", "TextData", "build"]

logger = logging.getLogger(__name__)

_FORMAT = 2
"""Of the token files: those of another format are not read."""
_SIDES = ("train", "validation")


@dataclass(slots=True)
class TextData:
    """Training blocks, held-out blocks, and the tokenizer that made them."""

    train: PackedBlocks
    validation: PackedBlocks
    tokenizer: PreTrainedTokenizerBase

    @property
    def processor(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer, which is saved beside the weights."""
        return self.tokenizer

    @property
    def sample_tokens(self) -> int:
        """Return the tokens of a block."""
        return self.train.block_size

    def describe(self) -> str:
        """Return one line a person can read: blocks and tokens on both sides, and the vocabulary."""
        return (
            f"{len(self.train):,} training blocks of {self.train.block_size} tokens "
            f"({self.train.tokens / 1e6:.2f} M tokens), {len(self.validation):,} held out, "
            f"vocabulary {len(self.tokenizer):,}"
        )


def build(cfg: Root, run_dir: Path) -> TextData:
    """Read `cfg.data`, train or load its tokenizer, and return packed blocks; raise `DataError` when it cannot.

    Every rank may call it: one process does the work behind a file lock, the others read what it wrote.
    """
    run_dir = Path(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    source = open_source(cfg.data)
    with FileLock(str(run_dir / ".data.lock")):
        trained = bool(checkpoint_folders(run_dir / "checkpoints"))
        tokenizer = load_tokenizer(cfg, source, run_dir / "tokenizer", keep=trained)
    cache = Path(cfg.data.cache_dir or Path(cfg.output_root) / ".cache")
    encoder = Encoder(tokenizer, add_bos=cfg.data.add_bos, control_tokens=cfg.data.control_tokens)
    folder = cache / _fingerprint(cfg.data, source, encoder)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder / ".lock")):
        sizes = _pack(cfg.data, source, encoder, folder)
    train, validation = _split_blocks(cfg, source, sizes)
    dtype, block = token_dtype(tokenizer), cfg.data.block_size
    order = np.random.default_rng(cfg.seed).permutation(train[1])
    data = TextData(
        PackedBlocks(folder / train[0], dtype, block, order),
        PackedBlocks(folder / validation[0], dtype, block, validation[1]),
        tokenizer,
    )
    logger.info("data: %s", data.describe())
    say_rules(encoder)
    return data


def say_rules(encoder: Encoder) -> None:
    """Log what begins and ends a document, and what became of control tokens spelt out in the text."""
    logger.info("data: %s", encoder.rule())
    if (spelling := encoder.spelling()) is not None:
        logger.warning("data: %s", spelling)


def _fingerprint(cfg: DataConfig, source: TextSource, encoder: Encoder) -> str:
    parts = [_FORMAT, source.fingerprint, vocabulary_hash(encoder.tokenizer), encoder.identity]
    return f"{cfg.kind}-{text_digest(parts)[:16]}"


def _pack(cfg: DataConfig, source: TextSource, encoder: Encoder, folder: Path) -> dict[str, int]:
    """Write both token files unless an earlier run has, and return their lengths in tokens."""
    meta = folder / "meta.json"
    width = np.dtype(token_dtype(encoder.tokenizer)).itemsize
    if meta.exists():
        found: dict[str, int] = json.loads(meta.read_text(encoding="utf-8"))
        if all(_size(folder / f"{side}.bin") == found[side] * width for side in _SIDES):
            encoder.spelt, encoder.parsed = found["spelt"], found["parsed"]
            return found
        logger.warning("data: %s is incomplete and is written again", folder)
    meta.unlink(missing_ok=True)
    for left_over in folder.glob("*.part"):  # of a process that was killed; the lock is ours now
        left_over.unlink(missing_ok=True)
    streams = {"train": source.train, "validation": source.validation}
    counts = {
        side: write_tokens(streams[side](), encoder.tokenizer, folder / f"{side}.bin", encoder)
        for side in _SIDES
    }
    on_hub = any(
        content.startswith(COMMIT) for content in source.contents.values()
    )  # a commit does not change
    if not on_hub and open_source(cfg).fingerprint != source.fingerprint:
        raise DataError(
            f"{source.key}: was changed while it was read (got {source.name!r}); start again when it is whole"
        )
    counts |= {"spelt": encoder.spelt, "parsed": encoder.parsed}
    write_text(meta, to_json(counts, indent=2))
    return counts


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _split_blocks(
    cfg: Root, source: TextSource, sizes: dict[str, int]
) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
    """Return `(file, block numbers)` of both sides; held-out text too short for a block is replaced by the tail."""
    block = cfg.data.block_size
    train, held = np.arange(sizes["train"] // block), np.arange(sizes["validation"] // block)
    if sizes["train"] == 0 and sizes["validation"] == 0:
        raise DataError(f"{source.key}: holds no text (got {source.name!r}); give a source that is not empty")
    needed = 1 if len(held) else 2
    if len(train) < needed:
        total = sizes["train"] + sizes["validation"]
        smaller = f" or try data.block_size={total // 8}" if total // 8 >= 2 else ""
        raise DataError(
            f"data.block_size: the text must fill a training and a validation block (got {block} with {total} "
            f"tokens in {source.name!r}); give more text{smaller}"
        )
    if len(held):
        return ("train.bin", train), ("validation.bin", _spread(held, cfg.data.validation_blocks))
    tail = min(max(1, round(len(train) * cfg.data.validation_share)), len(train) - 1)
    return ("train.bin", train[:-tail]), ("train.bin", _spread(train[-tail:], cfg.data.validation_blocks))


def _spread(blocks: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of `blocks`, evenly spread over all of them."""
    if most <= 0 or len(blocks) <= most:
        return blocks
    chosen: np.ndarray = blocks[np.linspace(0, len(blocks) - 1, most).round().astype(int)]
    return chosen
