"""Cut prompts from held-out text or read them from a file; the same arguments always give the same prompts."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_infer.corpus.long_context import LONG_TASKS, long_prompts
from ssd_infer.corpus.stdlib import Document, Split, documents
from ssd_infer.corpus.textfiles import read_objects, read_whole
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import ConfigError, DataError, Problem

STDLIB_TASKS = {"stdlib_code": "code", "stdlib_prose": "prose"}
_CHARACTERS_PER_TOKEN = 8


@dataclass(frozen=True, slots=True)
class Task:
    """A named list of prompts as token ids; `sha256` identifies exactly these prompts."""

    name: str
    prompts: list[list[int]]

    @property
    def sha256(self) -> str:
        """Hash of the token ids."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()


def build_tasks(
    names: Sequence[str], tokenizer: Any, samples: int, prompt_tokens: int, seed: int
) -> list[Task]:
    """Build the prompt sets called `names`; raise ConfigError for an unknown name, DataError for unusable text."""
    expanded = list(
        dict.fromkeys(part for name in names for part in (STDLIB_TASKS if name == "auto" else [name]))
    )
    known = (*STDLIB_TASKS, *LONG_TASKS)
    unknown = [name for name in expanded if name not in known and not name.startswith("file:")]
    if unknown or not expanded:
        raise ConfigError(
            [
                Problem(
                    "tasks",
                    f"must be auto, {', '.join(known)} or file:PATH",
                    ", ".join(unknown) or "none",
                )
            ]
        )
    return [_build(name, tokenizer, samples, prompt_tokens, seed) for name in expanded]


def calibration_prompts(
    tasks: Sequence[Task], tokenizer: Any, count: int, prompt_tokens: int
) -> list[list[int]]:
    """Return prompts to resolve parameters on: validation text of the tasks' kinds, never the prompts measured.

    A `file:` task has no second text, so its own last prompts serve; the report names that in a warning.
    """
    pools = []
    for task in tasks:
        if task.name in STDLIB_TASKS:
            pools.append(
                _windows(STDLIB_TASKS[task.name], "validation", tokenizer, count, prompt_tokens, seed=1)
            )
        elif task.name in LONG_TASKS:
            pools.append(long_prompts(task.name, tokenizer, count, prompt_tokens, seed=1, split="validation"))
        else:
            pools.append(task.prompts[::-1])
    return [pool[turn] for turn in range(count) for pool in pools if turn < len(pool)][:count]


def held_out_ids(
    tasks: Sequence[Task], tokenizer: Any, tokens: int, width: int
) -> tuple[str, list[list[int]]]:
    """Return the source's name and windows of at most `width` ids, about `tokens` in all, of text never trained on."""
    kinds = [STDLIB_TASKS[task.name] for task in tasks if task.name in STDLIB_TASKS]
    if not kinds:
        return "the prompts", [prompt for task in tasks for prompt in task.prompts if len(prompt) > 1]
    per_kind = max(1, tokens // (width * len(kinds)))
    windows = [ids for kind in kinds for ids in _windows(kind, "test", tokenizer, per_kind, width, seed=2)]
    return f"stdlib test split, {' and '.join(kinds)}", windows


def _build(name: str, tokenizer: Any, samples: int, prompt_tokens: int, seed: int) -> Task:
    if name in STDLIB_TASKS:
        return Task(name, _windows(STDLIB_TASKS[name], "test", tokenizer, samples, prompt_tokens, seed))
    if name in LONG_TASKS:
        return Task(name, long_prompts(name, tokenizer, samples, prompt_tokens, seed, "test"))
    prompts = [
        _encode(tokenizer, entry, prompt_tokens, name) for entry in _read(Path(name.removeprefix("file:")))
    ]
    prompts = [prompt for prompt in prompts if prompt][:samples]
    if not prompts:
        raise DataError(
            f"tasks: {name} holds no prompt; give one JSON object a line with prompt, text or ids, or plain paragraphs"
        )
    return Task(name, prompts)


def _windows(kind: str, split: Split, tokenizer: Any, count: int, width: int, seed: int) -> list[list[int]]:
    """Cut `count` windows, each starting at a line of a document; documents are visited in a seeded order."""
    if tokenizer is None:
        raise DataError(
            'tasks: the checkpoint has no tokenizer, so text needs tasks=[file:PATH] of {"ids": […]} lines'
        )
    pool = documents(split, "code" if kind == "code" else "prose")
    if not pool:
        raise DataError(f"tasks: the running Python has no {split} {kind} documents; use tasks=[file:PATH]")
    order = random.Random(f"{seed}/{kind}/{split}")
    pool = order.sample(pool, len(pool))
    found: list[list[int]] = []
    for turn in range(count * 4):
        ids = tokenize(tokenizer, _cut(pool[turn % len(pool)], width, order))[:width]
        if len(ids) >= min(width, 16) and ids not in found:
            found.append(ids)
        if len(found) == count:
            break
    return found


def _cut(document: Document, width: int, order: random.Random) -> str:
    """Return text from a random line on, early enough that `width` tokens follow."""
    room = max(0, len(document.text) - width * _CHARACTERS_PER_TOKEN)
    start = document.text.rfind("\n", 0, order.randint(0, room) + 1) + 1
    return document.text[start : start + width * _CHARACTERS_PER_TOKEN]


def _read(path: Path) -> list[Any]:
    """Return one entry a prompt: a text, a list of ids, or `Written` by hand."""
    if path.suffix not in (".jsonl", ".json"):
        return [part for part in read_whole(path, "tasks").split("\n\n") if part.strip()]
    return [_entry(where, row) for where, _, row in read_objects(path, "tasks")]


class Written(str):
    """A prompt as a user writes it to a model: control tokens spelt out in it are meant."""

    __slots__ = ()


def _entry(where: str, row: dict[str, Any]) -> Any:
    key = next((key for key in ("ids", "prompt", "text") if row.get(key)), None)
    if key is None:
        raise DataError(f"tasks: {where} has none of ids, prompt, text")
    found = row[key]
    return Written(found) if key == "prompt" and isinstance(found, str) else found


def _encode(tokenizer: Any, entry: Any, prompt_tokens: int, name: str) -> list[int]:
    if isinstance(entry, list):
        return [int(token) for token in entry][-prompt_tokens:]
    if tokenizer is None:
        raise DataError(f"tasks: {name} holds text, but the checkpoint has no tokenizer; give ids instead")
    return tokenize(tokenizer, str(entry), last=prompt_tokens, parse=isinstance(entry, Written))
