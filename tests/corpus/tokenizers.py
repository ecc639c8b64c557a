"""Tokenizers of one id a character, with and without a chat template."""

from __future__ import annotations


class Letters:
    """One id a character, with an end mark."""

    eos_token_id = 0

    def __call__(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        return {"input_ids": [*(ord(char) for char in text), *([0] if add_special_tokens else [])]}


class Templated(Letters):
    """The same with a chat template, which may raise an error or write nothing."""

    chat_template = "a template"

    def __init__(self, error: Exception | None = None, silent: bool = False) -> None:
        self.error, self.silent = error, silent

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        if self.error is not None:
            raise self.error
        said = [f"[{message['role']}]{message['content']}[end]" for message in messages]
        return "" if self.silent else "".join([*said, "[assistant]"])


def text_of(ids: list[int]) -> str:
    """Return what ids of `Letters` spell."""
    return "".join(map(chr, ids))
