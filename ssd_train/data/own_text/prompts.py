"""What the target is asked to go on with; equal settings give equal prompts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from ssd_infer.corpus.categories import CATEGORIES, read_category
from ssd_infer.corpus.chat import encode_messages, written_by
from ssd_infer.corpus.marks import own_marks
from ssd_infer.corpus.prompt_files import Written, read_prompts
from ssd_infer.corpus.stdlib import documents
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import DataError, Problem
from ssd_train.config.schema_own_text import SelfGeneratedConfig

_SHORTEST = 16
"""Tokens of the shortest piece of a document that is continued."""
QUESTION = 64
"""Most tokens of a question that the model invents."""
_MARK = "QUESTION-STANDS-HERE"


@dataclass(frozen=True, slots=True)
class Order:
    """One batch of prompts."""

    prompts: list[list[int]]
    greedy: bool
    behind: list[int] | None = None
    """Of prompts the model is to finish itself: what stands behind them before it answers."""


class Prompts:
    """The prompts of a run; equal settings give equal ones, and a file is read and tokenised once."""

    def __init__(self, data: SelfGeneratedConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Keep the settings; raises DataError where a question the model invents cannot fit its chat template."""
        self.tokenizer, self.most, self.count, self.seed = tokenizer, data.prompt_tokens, data.own_batch, seed
        self._lists: dict[str, list[list[int]]] = {}
        self._invitation = _roomy(tokenizer, self.most) if "invented" in data.prompts else None

    def order(self, name: str, turn: int) -> Order:
        """Return batch `turn` of prompts of kind `name`.

        Even turns are sampled, odd ones greedy; prompts that are all used up are asked again, sampled only, since
        greedy answers would be the same. Raises DataError for a file that holds none.
        """
        greedy = turn % 2 == 1
        if name == "invented":
            assert self._invitation is not None
            begin, behind = self._invitation
            return Order([begin] * self.count, greedy, behind)
        if name == "stdlib":
            return Order(_cuts(self.tokenizer, self.most, self.count, f"{self.seed}/{turn}"), greedy)
        return self._listed(name, turn // 2, greedy=greedy)

    def _listed(self, name: str, place: int, *, greedy: bool) -> Order:
        """Return batch `place` of a list; a greedy one ends with it, a sampled one begins it anew."""
        if name not in self._lists:
            self._lists[name] = _listed(name, self.tokenizer, self.most)
        found, first = self._lists[name], place * self.count
        again = first >= len(found)
        if greedy and not again:
            return Order(found[first : first + self.count], greedy=True)
        count = self.count if again else min(self.count, len(found))
        return Order([found[(first + at) % len(found)] for at in range(count)], greedy=False)


def _roomy(tokenizer: PreTrainedTokenizerBase, most: int) -> tuple[list[int], list[int]]:
    """Return an invitation that leaves a question at least one of `most` tokens; raises DataError otherwise."""
    begin, behind = invitation(tokenizer)
    taken = len(begin) + len(behind)
    if taken + 1 > most:
        rule = f"must hold the {taken} tokens that stand around a question which the model invents, and a question"
        remedy = f"try a larger number, such as {taken + QUESTION}"
        raise DataError(str(Problem("data.prompt_tokens", rule, most, remedy)))
    return begin, behind


def invitation(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return what a user's turn begins with, and what stands between its end and the answer.

    A tokenizer without a chat template begins a text, which then has no end and no answer.
    """
    if written_by(tokenizer) == "plain text":
        begin = own_marks(tokenizer)[0]
        return begin or [_end(tokenizer)], []
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
    )
    before, found, behind = str(whole).partition(_MARK)
    if not found:
        raise DataError(
            "data.prompts: the chat template does not hold what the user says, so that the model cannot invent it; "
            "use data.prompts=[stdlib], or file:PATH"
        )

    def encoded(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return encoded(before), encoded(behind)


def _end(tokenizer: PreTrainedTokenizerBase) -> int:
    assert tokenizer.eos_token_id is not None
    return int(tokenizer.eos_token_id)


def _cuts(tokenizer: Any, most: int, count: int, seed: str) -> list[list[int]]:
    """Return beginnings of random length of pieces of documents, prose and code, that training may see."""
    draw = random.Random(seed)
    pool = [*documents("train", "prose"), *documents("train", "code")]
    found: list[list[int]] = []
    while len(found) < count:
        text = draw.choice(pool).text
        start = text.rfind("\n", 0, draw.randrange(len(text))) + 1
        ids = tokenize(tokenizer, text[start : start + 8 * most])[: draw.randint(min(_SHORTEST, most), most)]
        if len(ids) >= min(_SHORTEST, most):
            found.append(ids)
    return found


def _listed(name: str, tokenizer: Any, most: int) -> list[list[int]]:
    """Return all prompts of a file, or the embedded ones that no report measures; of equal ones, one."""
    if name == "categories":
        held = [messages for kind in CATEGORIES for messages in read_category(kind).calibration]
        return _distinct(encode_messages(tokenizer, messages, name)[-most:] for messages in held)
    found = []
    for entry in _entries(name):
        ids = (
            entry if isinstance(entry, list) else tokenize(tokenizer, entry, parse=isinstance(entry, Written))
        )
        found.append(ids[-most:])
    found = _distinct(ids for ids in found if ids)
    if not found:
        raise DataError(
            f"data.prompts: {name} holds no prompt with a token of this tokenizer; give text or ids"
        )
    return found


def _distinct(prompts: Iterable[list[int]]) -> list[list[int]]:
    return [list(ids) for ids in dict.fromkeys(map(tuple, prompts))]


def _entries(name: str) -> tuple[Any, ...]:
    try:
        return tuple(read_prompts(name))
    except DataError as error:
        raise DataError(f"data.prompts: {str(error).removeprefix('tasks: ')}") from error
