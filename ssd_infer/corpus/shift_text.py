"""Streams whose text changes its kind: prose, then code, then dialogue, all from the running Python's library."""

from __future__ import annotations

import random
import re
from typing import Any

from ssd_infer.corpus.stdlib import Split, documents
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import DataError

SHIFT_TASK = "task_shift"
KINDS = ("prose", "code", "dialogue")
FEWEST_TOKENS = 96
"""Least new tokens a kind of text gets; below that a search has no time."""
_DESCRIBED = re.compile(
    r'^[ \t]*(?:async )?def (?P<name>\w+)\([^)]*\)[^:\n]*:\n\s+"""(?P<says>[A-Z][^"\n]{20,160}?)\.?(?:"""|\n)',
    re.MULTILINE,
)
_CHARACTERS_PER_TOKEN = 8


def shift_streams(
    tokenizer: Any, count: int, width: int, seed: int, split: Split = "test"
) -> list[list[list[int]]]:
    """Return `count` streams of one text of at most `width` tokens for each of `KINDS`, in that order."""
    if tokenizer is None:
        raise DataError("tasks: task_shift is text, but the checkpoint has no tokenizer")
    streams = []
    for turn in range(count):
        order = random.Random(f"shift/{split}/{seed}/{turn}")
        texts = [
            _passage(order, split, "prose", width),
            _passage(order, split, "code", width),
            dialogue(order, split, width),
        ]
        ids = [tokenize(tokenizer, text, marks=place == 0) for place, text in enumerate(texts)]
        streams.append([ids[0][:width], ids[1][:width], ids[2][-width:]])
    return streams


def _passage(order: random.Random, split: Split, kind: Any, width: int) -> str:
    """Return text of one document from a random line on, after a blank line."""
    pool = documents(split, kind)
    if not pool:
        raise DataError(f"tasks: the running Python has no {split} {kind} documents for task_shift")
    text = order.choice(pool).text
    room = max(0, len(text) - width * _CHARACTERS_PER_TOKEN)
    start = text.rfind("\n", 0, order.randint(0, room) + 1) + 1
    return "\n\n" + text[start : start + width * _CHARACTERS_PER_TOKEN]


def dialogue(order: random.Random, split: Split, width: int) -> str:
    """Return questions about library functions with the answers their docstrings give, the last one unanswered."""
    found = [
        match.groupdict() for item in documents(split, "code") for match in _DESCRIBED.finditer(item.text)
    ]
    if len(found) < 2:
        raise DataError(f"tasks: the running Python has no {split} functions with docstrings for task_shift")
    order.shuffle(found)
    parts, size, last = list[str](), 0, found.pop()
    for entry in found:
        parts.append(f"Q: What does {entry['name']} do?\nA: {entry['says']}.\n\n")
        size += len(parts[-1])
        if size >= width * _CHARACTERS_PER_TOKEN:
            break
    return "\n\n" + "".join(parts) + f"Q: What does {last['name']} do?\nA:"
