"""Token ids that a draft must be able to say whatever a text is about, read from a tokenizer's files.

Ends of text and turns, the bytes and digits that everything rare is spelled with, and runs of blanks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ssd_infer.checkpoint.content import files_digest
from ssd_infer.jsonio import from_json

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer.model",
)
_FEW = 64
"""Special tokens up to which all of them count; where there are more, most are reserved ones that nobody uses."""
_BLANKS = {"▁": " ", "Ġ": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"}
"""How vocabularies write blanks."""


def tokenizer_digest(folder: Path | None) -> str:
    """Return a hash of the tokenizer's files in `folder`; "" where there are none. Raises DataError."""
    files = [] if folder is None else [folder / name for name in FILES if (folder / name).is_file()]
    return files_digest(files, "checkpoint", folder) if files else ""


def ending_ids(*configs: Any) -> list[int]:
    """Return the ids that end a text, by the `eos_token_id` of each of `configs`."""
    found: list[int] = []
    for config in configs:
        ids = getattr(config, "eos_token_id", None)
        found += [ids] if isinstance(ids, int) else list(ids or [])
    return list(dict.fromkeys(int(token) for token in found))


def always_ids(folder: Path | None) -> list[int]:
    """Return the ids of `folder`'s tokenizer that belong in every draft, ends first; none without a tokenizer.json."""
    stored = _read(folder, "tokenizer.json")
    if not isinstance(stored, dict):
        return []
    config = _read(folder, "tokenizer_config.json")
    ends, special = _special(stored, config if isinstance(config, dict) else {}, _template(folder, config))
    pieces = [token for piece, token in _pieces(stored.get("model")) if _basic(piece)]
    return list(dict.fromkeys([*ends, *special, *pieces]))


def _read(folder: Path | None, name: str) -> Any:
    """Return the JSON of a file in `folder`; None where it is not there, or is none."""
    if folder is None:
        return None
    try:
        return from_json((folder / name).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _template(folder: Path | None, config: Any) -> str:
    """Return the chat template of `folder`, wherever it is; "" without one."""
    own = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(own, str):
        return own
    try:
        return "" if folder is None else (folder / "chat_template.jinja").read_text("utf-8")
    except (OSError, ValueError):
        return ""


def _special(stored: dict[str, Any], config: dict[str, Any], template: str) -> tuple[list[int], list[int]]:
    """Return the ids of end-of-text tokens, and of the special tokens that are in use."""
    added = [
        one
        for one in stored.get("added_tokens") or []
        if isinstance(one, dict) and type(one.get("id")) is int
    ]
    special = {str(one.get("content")): one["id"] for one in added if one.get("special")}
    named = {_content(value) for key, value in config.items() if str(key).endswith("_token")}
    few = len(special) <= _FEW
    used = [token for text, token in special.items() if few or text in named or text in template]
    ends = _content(config.get("eos_token"))
    return [special[ends]] if ends in special else [], used


def _content(value: Any) -> str:
    return str(value.get("content")) if isinstance(value, dict) else str(value)


def _pieces(model: Any) -> Iterator[tuple[str, int]]:
    """Yield the pieces of a tokenizer's model with their ids: a table, or a list in the order of ids."""
    vocabulary: Any = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from ((piece, token) for piece, token in vocabulary.items() if type(token) is int)
    elif isinstance(vocabulary, list):
        yield from ((str(one[0]), at) for at, one in enumerate(vocabulary) if isinstance(one, list) and one)


def _basic(piece: str) -> bool:
    """Tell whether a piece is a byte, a digit (a blank before it or none), or a run of blanks."""
    if len(piece) == 1 or (len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")):
        return len(piece) > 1 or ord(piece) < 0x180
    text = "".join(_BLANKS.get(letter, letter) for letter in piece)
    return not text.strip() or (text[1:].isdecimal() and len(text) == 2 and not text[0].strip())


def within(ids: Iterable[int], vocabulary: int) -> list[int]:
    """Return those of `ids` that a vocabulary of that size has, each once."""
    return [token for token in dict.fromkeys(ids) if 0 <= token < vocabulary]
