"""Prompts of a user's own file: JSON lines of texts or token ids, or paragraphs of plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssd_infer.corpus.task import Task
from ssd_infer.corpus.textfiles import check_text, read_objects, read_whole
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import DataError

HELD_BACK = 8
"""Prompts after the measured ones that parameters are chosen on, where a file has so many."""
_KEYS = ("ids", "prompt", "text")


class Written(str):
    """A prompt as a user writes it to a model: control tokens spelt out in it are meant."""

    __slots__ = ()


Entry = str | list[int]
"""A text, `Written` by hand or not, or token ids."""


def read_prompts(name: str) -> list[Entry]:
    """Return the prompts of `file:PATH`; raises DataError by file, line and rule."""
    path = Path(name.removeprefix("file:")).expanduser()
    found: list[Entry]
    if path.suffix in (".jsonl", ".json"):
        found = [_entry(where, row) for where, _, row in read_objects(path, "tasks")]
    else:
        found = [part for part in read_whole(path, "tasks").split("\n\n") if part.strip()]
    if not found:
        raise DataError(
            f"tasks: {name} holds no prompt; give one JSON object a line with prompt, text or ids, or plain paragraphs"
        )
    return found


def file_task(name: str, tokenizer: Any, samples: int, prompt_tokens: int) -> Task:
    """Return the task of `file:PATH`: the last `prompt_tokens` of each of its first `samples` prompts."""
    found = [
        _encode(tokenizer, entry, prompt_tokens, name) for entry in read_prompts(name)[: samples + HELD_BACK]
    ]
    found = [(ids, whole) for ids, whole in found if ids]
    if not found:
        raise DataError(
            f"tasks: {name} holds no prompt with a token of this checkpoint's tokenizer; give text or ids"
        )
    prompts = [ids for ids, _ in found]
    cut = sum(whole > prompt_tokens for _, whole in found[:samples])
    note = (
        f"file:{Path(name).name}: {cut} of {len(prompts[:samples])} prompts are longer than "
        f"prompt_tokens={prompt_tokens}; their ends alone are decoded"
    )
    return Task(name, prompts[:samples], prompts[samples:], notes=(note,) if cut else ())


def _entry(where: str, row: dict[str, Any]) -> Entry:
    """Return what one line holds; raises DataError where that is neither text nor ids."""
    key = next((key for key in _KEYS if row.get(key)), None)
    if key is None:
        raise DataError(
            f"tasks: {where} has none of {', '.join(_KEYS)}; write one of them or remove the line"
        )
    found = row[key]
    if isinstance(found, str) and key != "ids":
        check_text(found, f"tasks: {where}: {key}")
        return Written(found) if key == "prompt" else found
    if isinstance(found, list) and all(type(token) is int for token in found):
        return found
    rule = "a list of whole numbers" if key == "ids" else "text or a list of whole numbers"
    raise DataError(
        f"tasks: {where}: {key} must be {rule} (got {repr(found)[:60]}); correct the line or remove it"
    )


def _encode(tokenizer: Any, entry: Entry, most: int, name: str) -> tuple[list[int], int]:
    """Return at most so many ids of a prompt's end, and how many the whole prompt has."""
    if isinstance(entry, list):
        return entry[-most:], len(entry)
    if tokenizer is None:
        raise DataError(f"tasks: {name} holds text, but the checkpoint has no tokenizer; give ids instead")
    parse = isinstance(entry, Written)
    whole = tokenize(tokenizer, entry, parse=parse)
    return (whole if len(whole) <= most else tokenize(tokenizer, entry, last=most, parse=parse)), len(whole)
