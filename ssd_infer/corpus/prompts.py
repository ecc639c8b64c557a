"""Prompts of an evaluation: cut from held-out text, embedded or from a file; the same arguments give the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ssd_infer.corpus.categories import SET, category_tasks
from ssd_infer.corpus.long_context import LONG_TASKS, long_prompts
from ssd_infer.corpus.prompt_files import file_task, read_prompts
from ssd_infer.corpus.questions import question_tasks, read_questions
from ssd_infer.corpus.stdlib import Document, Split, documents
from ssd_infer.corpus.task import Task
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import ConfigError, DataError, Problem

STDLIB_TASKS = {"stdlib_code": "code", "stdlib_prose": "prose"}
READERS: dict[str, Callable[[str], object]] = {
    "file": read_prompts,
    "spec_bench": read_questions,
    "speed_bench": read_questions,
}
"""What stands before the colon of a task from a file, and who reads and checks the file."""
SPREAD = 3
"""Parameters are chosen on every third task first."""
_CHARACTERS_PER_TOKEN = 8


def build_tasks(
    names: Sequence[str], tokenizer: Any, samples: int, prompt_tokens: int, seed: int
) -> list[Task]:
    """Build the prompt sets called `names`; raise ConfigError for an unknown name, DataError for unusable text."""
    expanded = list(
        dict.fromkeys(part for name in names for part in (STDLIB_TASKS if name == "auto" else [name]))
    )
    known = (*STDLIB_TASKS, *LONG_TASKS, SET)
    unknown = [name for name in expanded if name not in known and _reader(name) is None]
    if unknown or not expanded:
        files = " or ".join(f"{kind}:PATH" for kind in READERS)
        rule = f"must be auto, {', '.join(known)}, {files}"
        raise ConfigError([Problem("tasks", rule, ", ".join(unknown) or "none")])
    return [task for name in expanded for task in _build(name, tokenizer, samples, prompt_tokens, seed)]


def check_prompt_files(names: Sequence[str]) -> None:
    """Read the files that tasks name; raises DataError by file, line, rule and remedy where one is malformed."""
    for name in names:
        reader = _reader(name)
        if reader is not None:
            reader(name)


def _reader(name: str) -> Callable[[str], object] | None:
    kind, colon, _ = name.partition(":")
    return READERS.get(kind) if colon else None


def calibration_prompts(
    tasks: Sequence[Task], tokenizer: Any, count: int, prompt_tokens: int
) -> list[list[int]]:
    """Return prompts to resolve parameters on: text of the tasks' kinds that is not measured, tasks spread evenly.

    Only where there is none, the last measured prompts serve; `calibrated_on_measured` says so.
    """
    pools = []
    for task in tasks:
        if task.name in STDLIB_TASKS:
            pools.append(
                _windows(STDLIB_TASKS[task.name], "validation", tokenizer, count, prompt_tokens, seed=1)
            )
        elif task.name in LONG_TASKS:
            pools.append(long_prompts(task.name, tokenizer, count, prompt_tokens, seed=1, split="validation"))
        elif task.held_back or _without_second_text(task, tasks):
            pools.append(task.held_back or task.prompts[::-1])
    # The first prompts weigh most, as some choices look at no more than four: of many tasks, they are of distant ones.
    pools = [pool for first in range(SPREAD) for pool in pools[first::SPREAD]]
    return [pool[turn] for turn in range(count) for pool in pools if turn < len(pool)][:count]


def calibrated_on_measured(tasks: Sequence[Task]) -> str | None:
    """Return a sentence on the tasks whose measured prompts `calibration_prompts` returns; None where there is none."""
    found = [task.title for task in tasks if _without_second_text(task, tasks)]
    if not found:
        return None
    return f"parameters were chosen on measured prompts, since there are no others ({', '.join(found)})"


def _without_second_text(task: Task, tasks: Sequence[Task]) -> bool:
    """Tell whether parameters have to be chosen on the measured prompts of a task.

    A category with a single question does without, where another task has text to choose on.
    """
    if task.held_back or task.name in (*STDLIB_TASKS, *LONG_TASKS):
        return False
    alone = not any(other.held_back or other.name in (*STDLIB_TASKS, *LONG_TASKS) for other in tasks)
    return alone or task.name.startswith("file:")


def held_out_ids(
    tasks: Sequence[Task], tokenizer: Any, tokens: int, width: int
) -> tuple[str, list[list[int]]]:
    """Return the source's name and windows of at most `width` ids, about `tokens` in all, of text never trained on."""
    kinds = [STDLIB_TASKS[task.name] for task in tasks if task.name in STDLIB_TASKS]
    if not kinds:
        return "the prompts", _within(tokens, width, [prompt for task in tasks for prompt in task.prompts])
    per_kind = max(1, tokens // (width * len(kinds)))
    windows = [ids for kind in kinds for ids in _windows(kind, "test", tokenizer, per_kind, width, seed=2)]
    return f"stdlib test split, {' and '.join(kinds)}", windows


def _within(tokens: int, width: int, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Return beginnings of at most `width` ids, of every n-th prompt where all together have more than `tokens`."""
    starts = [prompt[:width] for prompt in prompts if len(prompt) > 1]
    every = -(-sum(map(len, starts)) // tokens) or 1
    return starts[::every]


def _build(name: str, tokenizer: Any, samples: int, prompt_tokens: int, seed: int) -> list[Task]:
    if name in STDLIB_TASKS:
        return [Task(name, _windows(STDLIB_TASKS[name], "test", tokenizer, samples, prompt_tokens, seed))]
    if name in LONG_TASKS:
        return [Task(name, long_prompts(name, tokenizer, samples, prompt_tokens, seed, "test"))]
    if name == SET:
        return category_tasks(tokenizer, samples)
    if name.startswith("file:"):
        return [file_task(name, tokenizer, samples, prompt_tokens)]
    return question_tasks(name, tokenizer, samples)


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
