"""Train a byte-level BPE tokenizer on the run's own text, once, and keep it in the run directory."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ssd_infer.errors import DataError

logger = logging.getLogger(__name__)

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
_SPECIAL = [PAD, BOS, EOS]
_CHUNK = 4096
_BYTES = 256
_TRAIN_CHARACTERS = 6_000_000
_MARK = "tokenizer_identity.json"


def train_bpe(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocab_size` entries with begin, end and padding tokens; no network.

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
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def cached_bpe(
    texts: Iterable[str], vocab_size: int, max_length: int, directory: Path
) -> PreTrainedTokenizerBase:
    """Return the tokenizer stored in `directory` if it was made from these `texts` and `vocab_size`, else train it.

    A resumed run must never meet other token ids, so a stored tokenizer of another origin is a `DataError`.
    """
    texts = list(texts)
    identity = {"vocab_size": vocab_size, "texts": text_hash(texts)}
    mark = directory / _MARK
    if mark.exists():
        found = json.loads(mark.read_text(encoding="utf-8"))
        if found != identity:
            raise DataError(
                f"data.tokenizer_vocab: {directory} holds a tokenizer trained on other text or with another size "
                f"(got {vocab_size}, stored {found.get('vocab_size')}); use another run_name or resume=never"
            )
        return PreTrainedTokenizerFast.from_pretrained(directory)
    tokenizer = train_bpe(texts, vocab_size, max_length)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    mark.write_text(json.dumps(identity), encoding="utf-8")
    return tokenizer


def text_hash(texts: Iterable[str]) -> str:
    """Return a hash of `texts` in their order, document borders included."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of what `tokenizer` does to text: the backend's whole description, or its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        text = backend.to_str()
    else:
        text = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sample(texts: Iterable[str]) -> Iterator[str]:
    """Yield pieces of `texts` spread over all of them, about `_TRAIN_CHARACTERS` in all: merges need no more."""
    pieces = [text[start : start + _CHUNK] for text in texts for start in range(0, len(text), _CHUNK)]
    wanted = max(1, _TRAIN_CHARACTERS // _CHUNK)
    stride = max(1.0, len(pieces) / wanted)
    index = 0.0
    while int(index) < len(pieces):
        yield pieces[int(index)]
        index += stride
