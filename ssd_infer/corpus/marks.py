"""The marks a tokenizer puts around a text by itself: what begins a document, and so what begins a prompt."""

from __future__ import annotations

from typing import Any

from ssd_infer.errors import DataError

_PROBES = ("a", "0", "the", ".")


def own_marks(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids `tokenizer` puts before and after a text; raises DataError where it changes the text as well."""
    for probe in _PROBES:
        bare: list[int] = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
        whole: list[int] = list(tokenizer(probe)["input_ids"])
        for start in range(len(whole) - len(bare) + 1 if bare else 0):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
    raise DataError(
        f"model: the tokenizer {type(tokenizer).__name__} changes a text by its marks (got {whole} for {probe!r}, "
        f"{bare} without marks), so documents and prompts cannot be put together; use another tokenizer"
    )
