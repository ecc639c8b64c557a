"""The embedded prompts by category: eight of each to measure, and one more to choose parameters on.

They were written for this package and lie as TOML in `category_prompts`, one file a category. A prompt is a list of
messages, the user's and the model's in turns, which ends with the user's.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ssd_infer.corpus.chat import encode_messages, written_by
from ssd_infer.corpus.task import Task

SET = "categories"
CATEGORIES = (
    "coding",
    "maths",
    "summarising",
    "translation",
    "question_answering",
    "writing",
    "roleplay",
    "extraction",
    "multilingual",
    "reasoning",
    "chat",
)
PLAIN = f"{SET}: this tokenizer has no chat template, so its prompts are plain text"


@dataclass(frozen=True, slots=True)
class Category:
    """Prompts of one kind, each a list of messages."""

    measured: list[list[str]]
    calibration: list[list[str]]


def read_category(name: str) -> Category:
    """Return the embedded prompts of one of `CATEGORIES`."""
    folder = resources.files("ssd_infer.corpus").joinpath("category_prompts")
    found = tomllib.loads(folder.joinpath(f"{name}.toml").read_text("utf-8"))
    return Category(_messages(found["measured"]), _messages(found["calibration"]))


def _messages(prompts: list[dict[str, list[str]]]) -> list[list[str]]:
    return [[message.strip() for message in prompt["messages"]] for prompt in prompts]


def category_tasks(tokenizer: Any, samples: int) -> list[Task]:
    """Return a task a category, `samples` prompts of each if it has so many; raises DataError without a tokenizer.

    Prompts are kept whole: half an instruction asks something else.
    """
    return [_task(name, read_category(name), tokenizer, samples) for name in CATEGORIES]


def _task(name: str, category: Category, tokenizer: Any, samples: int) -> Task:
    name = f"{SET}/{name}"
    measured = [encode_messages(tokenizer, messages, name) for messages in category.measured[:samples]]
    held_back = [encode_messages(tokenizer, messages, name) for messages in category.calibration]
    how = written_by(tokenizer)
    return Task(name, measured, held_back, how, (PLAIN,) if how == "plain text" else ())
