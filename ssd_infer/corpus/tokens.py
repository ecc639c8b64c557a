"""Text to ids, as training packs it."""

from __future__ import annotations

from typing import Any

from ssd_infer.corpus.marks import own_marks


def tokenize(
    tokenizer: Any, text: str, *, last: int | None = None, marks: bool = True, parse: bool = False
) -> list[int]:
    """Return ids as training packs them: the tokenizer's own beginning marks, no end mark, `</s>` in a text as text.

    With `last` at most so many, the marks and the end of the text. Without `marks` it is a text that others come
    before; `parse` takes control tokens in it as such.
    """
    begin = own_marks(tokenizer)[0] if marks else []
    ids: list[int] = list(
        tokenizer(text, add_special_tokens=False, split_special_tokens=not parse)["input_ids"]
    )
    over = 0 if last is None else max(0, len(begin) + len(ids) - last)
    return [*begin, *ids[over:]][:last]
