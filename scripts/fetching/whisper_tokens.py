"""The tokens of a Whisper as transformers wants them: a tokenizer with its timestamps, and the rules of generation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_infer.errors import CheckpointError
from ssd_infer.jsonio import from_json

ENGLISH_ONLY = 51864
"""Vocabulary of the models that know English only; those of many languages have more."""
END, START, TRANSCRIBE, TRANSLATE, PREVIOUS, SILENT = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|transcribe|>",
    "<|translate|>",
    "<|startofprev|>",
    "<|notimestamps|>",
)
STEP = 0.02
"""Seconds from one timestamp token to the next."""


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises CheckpointError when there is none."""
    try:
        found = from_json(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name}: cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file.name}: holds no object")
    return found


def read_words(file: Path, size: int) -> list[str]:
    """Return the vocabulary, one token a line in the order of ids; raises CheckpointError if not of `size` tokens."""
    try:
        words = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file.name}: cannot be read ({error})") from None
    if len(words) != size:
        raise CheckpointError(f"{file.name}: holds {len(words)} tokens, the model has {size}")
    return words


def build_tokenizer(file: Path, words: Sequence[str], max_length: int) -> Any:
    """Return a `WhisperTokenizer` whose tokens have the ids that `words` gives them, timestamps with them.

    Raises CheckpointError where tokenizer.json and vocabulary differ.
    """
    from transformers import AddedToken, WhisperTokenizer

    vocabulary, merges, special = _parts(file)
    names = [AddedToken(name, special=True, normalized=False) for name in special]
    tokenizer = WhisperTokenizer(
        vocab=vocabulary,
        merges=merges,
        pad_token=END,
        extra_special_tokens=names,
        model_max_length=max_length,
    )
    first = _first_timestamp(words)
    times = [AddedToken(name, special=False, normalized=False) for name in words[first:]]
    tokenizer.add_tokens(times)
    found, expected = tokenizer.get_vocab(), {name: index for index, name in enumerate(words)}
    if found != expected or len(expected) != len(words):
        differing = sorted({index for _, index in found.items() ^ expected.items()})
        where = f"at {differing[0]}" if differing else "a token is there twice"
        raise CheckpointError(f"{file.name}: differs from the vocabulary ({where})")
    return tokenizer


def _parts(file: Path) -> tuple[dict[str, int], list[tuple[str, str]], list[str]]:
    """Return vocabulary, merges and special tokens (by id) of a tokenizer.json with a byte-level BPE."""
    found = read_json(file)
    try:
        vocabulary = {str(name): int(index) for name, index in found["model"]["vocab"].items()}
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in found["model"]["merges"]]
        merges = [(str(left), str(right)) for left, right in pairs]
        added = sorted((int(token["id"]), str(token["content"])) for token in found["added_tokens"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{file.name}: is not the tokenizer of a Whisper") from None
    special = [name for _, name in added]
    return vocabulary, _complete(merges, vocabulary, {*special, ""}, file.name), special


def _complete(
    merges: list[tuple[str, str]], vocabulary: Mapping[str, int], special: set[str], name: str
) -> list[tuple[str, str]]:
    """Return `merges` with those that the file lost.

    Some files lack the first merge (an old converter took it for a heading), so that ` today` falls apart into five
    tokens. Every merge makes a token of its own and merges stand in the order of these tokens, so a lost one of two
    characters is known; any other raises CheckpointError.
    """
    made = {left + right: (left, right) for left, right in merges}
    lost = [token for token in vocabulary if len(token) > 1 and token not in made and token not in special]
    made |= {token: (token[0], token[1]) for token in lost if len(token) == 2}
    known = all(len(token) == 2 for token in lost) and len(made) == len(merges) + len(lost)
    if not known or not all(
        token in vocabulary and part in vocabulary for token in made for part in made[token]
    ):
        raise CheckpointError(f"{name}: vocabulary and merges do not fit together")
    return sorted(made.values(), key=lambda pair: vocabulary[pair[0] + pair[1]])


def _first_timestamp(words: Sequence[str]) -> int:
    """Return the id of `<|0.00|>`; raises CheckpointError unless timestamps, and nothing else, follow it."""
    first = words.index(SILENT) + 1 if SILENT in words else 0
    expected = [f"<|{STEP * count:.2f}|>" for count in range(len(words) - first)]
    if not first or list(words[first:]) != expected or not expected:
        raise CheckpointError(f"vocabulary: the timestamps that should follow {SILENT} are not there")
    return first


def generation_settings(file: Path, words: Sequence[str], max_length: int) -> dict[str, Any]:
    """Return the arguments of `GenerationConfig`, from CTranslate2's config.json and the vocabulary.

    Raises CheckpointError for special tokens that are missing and ids that no token has.
    """
    found = read_json(file)
    ids = {name: index for index, name in enumerate(words)}
    missing = [name for name in (END, START, TRANSCRIBE, TRANSLATE, PREVIOUS, SILENT) if name not in ids]
    if missing:
        raise CheckpointError(f"vocabulary: {missing[0]} is missing")
    settings: dict[str, Any] = {
        "bos_token_id": ids[END],
        "eos_token_id": ids[END],
        "pad_token_id": ids[END],
        "decoder_start_token_id": ids[START],
        "prev_sot_token_id": ids[PREVIOUS],
        "no_timestamps_token_id": ids[SILENT],
        "suppress_tokens": _ids(found, "suppress_ids", words),
        "begin_suppress_tokens": _ids(found, "suppress_ids_begin", words),
        "alignment_heads": _heads(found),
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
        "is_multilingual": len(words) != ENGLISH_ONLY,
        "max_length": max_length,
    }
    if settings["is_multilingual"]:
        settings["lang_to_id"] = _languages(words)
        settings["task_to_id"] = {"transcribe": ids[TRANSCRIBE], "translate": ids[TRANSLATE]}
        settings["task"] = "transcribe"
    return settings


def _ids(found: dict[str, Any], key: str, words: Sequence[str]) -> list[int]:
    given = found.get(key)
    if not isinstance(given, list) or any(
        type(item) is not int or not 0 <= item < len(words) for item in given
    ):
        raise CheckpointError(f"config.json: {key} should list ids of the vocabulary")
    return given


def _heads(found: dict[str, Any]) -> list[list[int]]:
    """Return the pairs of layer and head whose attention follows the audio."""
    given = found.get("alignment_heads")
    if not isinstance(given, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(item) is int and item >= 0 for item in pair)
        for pair in given
    ):
        raise CheckpointError("config.json: alignment_heads should list pairs of layer and head")
    return given


def _languages(words: Sequence[str]) -> dict[str, int]:
    """Return the ids of the language tokens: those between the start and the first task."""
    between = range(words.index(START) + 1, min(words.index(TRANSLATE), words.index(TRANSCRIBE)))
    languages = {words[index]: index for index in between}
    if not languages or not all(re.fullmatch(r"<\|[a-z]{2,3}\|>", name) for name in languages):
        raise CheckpointError(f"vocabulary: the languages that should follow {START} are not there")
    return languages
