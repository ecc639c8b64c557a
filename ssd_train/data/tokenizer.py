"""Train a byte-level BPE tokenizer on the run's own text, once, and keep it in the run directory."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ssd_infer.checkpoint.content import folder_digest
from ssd_infer.errors import DataError
from ssd_infer.jsonio import to_json
from ssd_train.config.schema import HFModelConfig, ModelConfig, Root
from ssd_train.data.sources import TextSource

EOS, PAD = "<|end|>", "<|pad|>"
_SPECIAL = [PAD, EOS]
_CHUNK = 4096
_BYTES = 256
_READ_CHARACTERS = 64_000_000
_TRAIN_CHARACTERS = 16_000_000
_MARK = "tokenizer_identity.json"
_FORMAT = 2
"""Of that file; from 2 on `source` is a hash of all text."""

logger = logging.getLogger(__name__)


def train_bpe(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocab_size` entries with end (also begin) and padding tokens; no network.

    Byte-level, so every text encodes without an unknown token and decodes to itself (Sennrich et al., 1508.07909).
    """
    if vocab_size < _BYTES + len(_SPECIAL):
        raise DataError(
            f"data.tokenizer_vocab: must be at least {_BYTES + len(_SPECIAL)}, the bytes and the special tokens "
            f"(got {vocab_size}); try 4096"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_sample(texts), trainer=trainer)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=EOS,  # documents follow one another, so the end of one is the begin of the next
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def load_tokenizer(
    cfg: Root, source: TextSource, directory: Path, *, keep: bool = True
) -> PreTrainedTokenizerBase:
    """Return the model's own tokenizer, or one trained on `source` and kept in `directory`.

    `keep` tells that checkpoints depend on the one in `directory`, so that it must not be replaced.
    Raises `DataError` when the tokenizer cannot be loaded or has more entries than the model has rows.
    """
    model = cfg.model
    name = model.name if isinstance(model, HFModelConfig) else getattr(model, "tokenizer", None)
    if name is None:
        length = getattr(model, "max_length", cfg.data.block_size)
        tokenizer = cached_bpe(source, cfg.data.tokenizer_vocab, length, directory, keep=keep)
    else:
        tokenizer = pretrained_tokenizer(model, name)
    rows = getattr(model, "vocab_size", None)
    if rows is not None and len(tokenizer) > rows:
        raise DataError(
            f"model.vocab_size: must be at least the tokenizer's {len(tokenizer)} entries (got {rows}); "
            f"try model.vocab_size={len(tokenizer)} or another tokenizer"
        )
    return tokenizer


def pretrained_tokenizer(model: ModelConfig, name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer called `name`; raise `DataError` with the reason when there is none."""
    options = {}
    if isinstance(model, HFModelConfig):
        options = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **options)
    except (
        Exception
    ) as error:  # transformers raises whatever its backend meets; each is said, none is skipped
        reason = " ".join(str(error).split())[:200]
        key = "model.name" if isinstance(model, HFModelConfig) else "model.tokenizer"
        raise DataError(
            f"{key}: no tokenizer can be loaded from it (got {name!r}): {reason}; "
            "check the name, or save a tokenizer into the directory"
        ) from error
    return tokenizer


def cached_bpe(
    source: TextSource, vocab_size: int, max_length: int, directory: Path, *, keep: bool = True
) -> PreTrainedTokenizerBase:
    """Return the tokenizer stored in `directory` if it was made from `source` and `vocab_size`, else train it.

    A resumed run must never meet other token ids: with `keep` a stored tokenizer of another origin is a `DataError`.
    """
    identity = {"format": _FORMAT, "vocab_size": vocab_size, "source": source.fingerprint}
    mark = directory / _MARK
    if mark.exists():
        found = json.loads(mark.read_text(encoding="utf-8"))
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(directory)
        if (
            keep and "format" not in found
        ):  # which looked at a part of the text only, so there is nothing to compare
            logger.warning(
                "%s was made by an earlier version: its text is not compared with %s", directory, source.key
            )
            found |= {"format": _FORMAT, "source": source.fingerprint}
        if found == {**identity, "vocabulary": vocabulary_hash(tokenizer)}:
            return tokenizer
        if keep:
            raise _other_tokenizer(directory, found, identity, source)
        mark.unlink()
    trained = train_bpe((item.text for item in source.train()), vocab_size, max_length)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        trained.save_pretrained(directory)
        mark.write_text(to_json({**identity, "vocabulary": vocabulary_hash(trained)}), encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"output_root: the tokenizer cannot be written (got {directory}: {error.strerror}); free space or "
            "set output_root to another disk"
        ) from error
    again: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(directory)
    return again


def _other_tokenizer(
    directory: Path, found: dict[str, Any], wanted: dict[str, Any], source: TextSource
) -> DataError:
    """Return the error for a stored tokenizer that is not the wanted one, named by what differs."""
    remedy = "use another run_name or resume=never"
    size, then = wanted["vocab_size"], found.get("vocab_size")
    if size != then:
        return DataError(
            f"data.tokenizer_vocab: {directory} holds a tokenizer of another size (got {size}, stored {then}); {remedy}"
        )
    if wanted["source"] != found.get("source"):
        return DataError(
            f"{source.key}: {directory} holds a tokenizer made from other text (got {source.name!r}); {remedy}"
        )
    return DataError(
        f"{directory}: the tokenizer was changed after the run trained it; restore it, or {remedy}"
    )


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of what `tokenizer` does to text; padding and truncation, set by each call, do not count."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        described: object = _saved_vocabulary(tokenizer)
    else:
        described = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _saved_vocabulary(tokenizer: PreTrainedTokenizerBase) -> list[object]:
    """Return what a tokenizer written in Python consists of: its class, its entries, and the content of its files."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_vocabulary(folder)
        files = folder_digest(Path(folder), "model.tokenizer")
    return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), files]


def _sample(texts: Iterable[str]) -> list[str]:
    """Return pieces spread over the first `_READ_CHARACTERS` of `texts`, at most `_TRAIN_CHARACTERS` in all."""
    pieces: list[str] = []
    read = 0
    for text in texts:
        pieces.extend(text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
        read += len(text)
        if read >= _READ_CHARACTERS:
            break
    stride = max(1.0, read / _TRAIN_CHARACTERS)
    return [pieces[int(step * stride)] for step in range(int(len(pieces) / stride))]
