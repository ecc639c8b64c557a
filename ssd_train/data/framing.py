"""From documents to ids: what begins and ends one, and what control tokens spelt out in its text become."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase

from ssd_infer.corpus.marks import own_marks
from ssd_infer.errors import DataError


class Encoder:
    """Encode texts as one run does, and count the control tokens that their text spells out.

    A document begins with what the tokenizer puts before a text, unless `add_bos` is off, and ends with what it puts
    after one; the end token comes there in any case, once. `</s>` inside a text is text, unless `control_tokens` is
    "parse".
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, add_bos: bool = True, control_tokens: str = "text"
    ) -> None:
        """Find the marks; raises DataError for a tokenizer without an end token."""
        end = tokenizer.eos_token_id
        if end is None:
            raise DataError(
                "model: the tokenizer has no end token (got eos_token=None); use another tokenizer"
            )
        self.tokenizer, self.parses = tokenizer, control_tokens == "parse"
        self.own_begin, after = own_marks(tokenizer)
        self.begin: list[int] = self.own_begin if add_bos else []
        self.end: list[int] = after if end in after else [*after, end]
        self.spelt = 0
        """Control tokens that texts spelt out."""
        self.parsed = 0
        """Control tokens among the ids of texts."""
        self._control = _control_tokens(tokenizer)
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._control, key=len, reverse=True))))

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what the ids of a text depend on besides the tokenizer."""
        return (tuple(self.begin), tuple(self.end), self.parses)

    def rule(self) -> str:
        """Return the rule in one line: what begins and ends a document, and how that is changed."""
        begin, end = self._names(self.begin) or "nothing", self._names(self.end)
        if self.begin:
            why = f"the tokenizer's own rule; data.add_bos=false leaves {begin} out"
        elif self.own_begin:
            own = self._names(self.own_begin)
            why = f"data.add_bos=false; prompts still begin with {own}, since the tokenizer puts it there"
        else:
            why = "the tokenizer's own rule"
        return f"documents begin with {begin} and end with {end} ({why})"

    def spelling(self) -> str | None:
        """Return in one line what became of the control tokens that texts spelt out; None when there were none."""
        if not self.spelt and not self.parsed:
            return None
        if self.parses:
            return f"{self.parsed} control tokens spelt out in the text were read as such (data.control_tokens=parse)"
        kept = (
            f"{self.spelt} control tokens spelt out in the text were encoded as text, not as control tokens"
        )
        if self.parsed:
            kept += f", but for {self.parsed} that the tokenizer knows no other way to write"
        return f"{kept} (data.control_tokens=parse reads them as such)"

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without marks; counts its control tokens."""
        if self._control:
            self.spelt += sum(len(self._pattern.findall(text)) for text in texts)
        encoded = plain_ids(self.tokenizer, texts, parse=self.parses)
        control = set(self._control.values()) - {self.tokenizer.unk_token_id}
        for row in encoded:
            if not control.isdisjoint(row):
                self.parsed += sum(token in control for token in row)
        return encoded

    def _names(self, ids: list[int]) -> str:
        return " ".join(map(str, self.tokenizer.convert_ids_to_tokens(ids)))


def plain_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, parse: bool = False
) -> list[list[int]]:
    """Return the ids of each text without marks, control tokens in it as text unless `parse`; nothing is cut off."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        encoded = tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=not parse, verbose=False
        )
        return [list(row) for row in encoded["input_ids"]]
    backend.no_truncation()  # a tokenizer file may ask for both, which would cut text silently
    backend.no_padding()
    with _spelling(backend, as_text=not parse):  # the backend alone needs no offsets and is faster
        return [item.ids for item in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


@contextmanager
def _spelling(backend: Any, *, as_text: bool) -> Iterator[None]:
    """Let control tokens in a text be text, or be themselves, and put the tokenizer's own setting back."""
    before = backend.encode_special_tokens
    backend.encode_special_tokens = as_text
    try:
        yield
    finally:
        backend.encode_special_tokens = before


def _control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the tokens the tokenizer marks as special, by their spelling."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {token.content: number for number, token in added.items() if token.special}
    named = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    return {text: number for text, number in {**found, **dict(named)}.items() if text.strip()}
