"""Prompts of any length from text every machine has: continue it, repeat a part of it, find one sentence in it."""

from __future__ import annotations

import random
from typing import Any

from ssd_infer.corpus.marks import own_marks
from ssd_infer.corpus.stdlib import Document, Kind, Split, documents
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import DataError

LONG_TASKS = ("long_continuation", "copy", "needle")
_CHARACTERS_PER_TOKEN = 8
_NAMES = ("amber", "birch", "coral", "delta", "ember", "fjord", "grove", "heron")
_NEEDLE = "\n\nThe secret number of {name} is {number}.\n\n"
_QUESTION = "\n\nThe secret number of {name} is"
_AGAIN = "\n\nThe same passage once more, word by word:\n\n"


def long_prompts(
    name: str, tokenizer: Any, count: int, width: int, seed: int, split: Split
) -> list[list[int]]:
    """Return `count` prompts of `width` tokens for the task called `name`; the same arguments give the same prompts.

    Documents are joined until they are long enough, for no single one reaches 8,192 tokens.
    """
    makers = {"long_continuation": _continuation, "copy": _copy, "needle": _needle}
    if tokenizer is None:
        raise DataError(
            'tasks: the checkpoint has no tokenizer, so text needs tasks=[file:PATH] of {"ids": […]} lines'
        )
    return [
        makers[name](tokenizer, width, random.Random(f"{name}/{split}/{seed}/{turn}"), split)
        for turn in range(count)
    ]


def _continuation(tokenizer: Any, width: int, order: random.Random, split: Split) -> list[int]:
    """Join prose or code documents and stop anywhere."""
    return tokenize(tokenizer, _text(order, split, order.choice(("prose", "code")), width), last=width)


def _copy(tokenizer: Any, width: int, order: random.Random, split: Split) -> list[int]:
    """Show a passage inside other text, announce its repetition, and begin it with its first tokens."""
    opening = max(4, width // 64)
    passage = _ids(tokenizer, _text(order, split, "prose", width // 4))[: width // 4]
    again = _ids(tokenizer, _AGAIN)
    begin = own_marks(tokenizer)[0]
    rest = width - len(begin) - len(passage) - len(again) - opening
    if rest < 0:
        raise DataError(f"tasks: copy needs prompts of more than {width} tokens; raise prompt_tokens")
    before = _ids(tokenizer, _text(order, split, "prose", rest))[:rest]
    return [*begin, *before, *passage, *again, *passage[:opening]]


def _needle(tokenizer: Any, width: int, order: random.Random, split: Split) -> list[int]:
    """Hide one sentence at a random depth and ask for its number at the end."""
    name, number = order.choice(_NAMES), order.randint(10_000, 99_999)
    needle = _ids(tokenizer, _NEEDLE.format(name=name, number=number))
    question = _ids(tokenizer, _QUESTION.format(name=name))
    begin = own_marks(tokenizer)[0]
    rest = width - len(begin) - len(needle) - len(question)
    if rest < 0:
        raise DataError(f"tasks: needle needs prompts of more than {width} tokens; raise prompt_tokens")
    hay = _ids(tokenizer, _text(order, split, "prose", rest))[:rest]
    depth = order.randint(0, len(hay))
    return [*begin, *hay[:depth], *needle, *hay[depth:], *question]


def _text(order: random.Random, split: Split, kind: Kind, tokens: int) -> str:
    """Join documents in a random order until they hold enough characters for `tokens`, repeating if they must."""
    pool = documents(split, kind)
    if not pool:
        raise DataError(f"tasks: the running Python has no {split} {kind} documents; use tasks=[file:PATH]")
    wanted, parts, size = tokens * _CHARACTERS_PER_TOKEN, list[str](), 0
    while size < wanted:
        for document in _shuffled(order, pool):
            parts.append(document.text)
            size += len(document.text)
            if size >= wanted:
                break
    return "\n\n".join(parts)


def _shuffled(order: random.Random, pool: list[Document]) -> list[Document]:
    return order.sample(pool, len(pool))


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a part of a prompt, without the marks that begin the whole."""
    return tokenize(tokenizer, text, marks=False)
