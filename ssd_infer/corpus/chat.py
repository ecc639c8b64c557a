"""Messages to ids: by the tokenizer's own chat template where it has one, as plain text otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import DataError, one_line

ROLES = ("user", "assistant")
_SPEAKERS = ("User: ", "Assistant: ")


def written_by(tokenizer: Any) -> str:
    """Return `chat template` or `plain text`: how this tokenizer's models are spoken to."""
    return "chat template" if getattr(tokenizer, "chat_template", None) else "plain text"


def encode_messages(tokenizer: Any, messages: Sequence[str], where: str) -> list[int]:
    """Return the ids of a conversation that the model is to go on with, none of them cut off.

    `messages` are the user's and the model's in turns, the user's first and last. Control tokens spelt out in them
    count as such. Raises DataError, which names `where`, without a tokenizer and where its template refuses them.
    """
    if tokenizer is None:
        raise DataError(
            f"tasks: {where} is text, but the checkpoint has no tokenizer; "
            'save one beside it, or use tasks=[file:PATH] of {"ids": […]} lines'
        )
    if written_by(tokenizer) == "plain text":
        return tokenize(tokenizer, plain_text(messages), parse=True)
    # The template writes the marks that begin a text itself, so that none may be added.
    ids: list[int] = list(
        tokenizer(_templated(tokenizer, messages, where), add_special_tokens=False)["input_ids"]
    )
    if not ids:
        raise DataError(f"tasks: the chat template of the tokenizer makes no text of {where}; {_REMEDY}")
    return ids


_REMEDY = "correct chat_template beside the checkpoint, or remove it there to have plain text"


def _templated(tokenizer: Any, messages: Sequence[str], where: str) -> str:
    turns = [{"role": ROLES[turn % 2], "content": text} for turn, text in enumerate(messages)]
    try:
        return str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # a template is a program that came with the checkpoint: it may raise anything
        raise DataError(
            f"tasks: the chat template of the tokenizer refuses {where} ({one_line(error)}); {_REMEDY}"
        ) from error


def plain_text(messages: Sequence[str]) -> str:
    """Return messages as a model without a template reads them: one as it is, several with who speaks."""
    if len(messages) == 1:
        return messages[0] + "\n\n"
    said = [_SPEAKERS[turn % 2] + text for turn, text in enumerate(messages)]
    return "\n\n".join([*said, _SPEAKERS[1].rstrip()])
