"""Streamers: whoever waits for one hears its end exactly once, whatever happens to the decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from ssd_infer.engine.values import shown
from ssd_infer.errors import Problem


@dataclass(slots=True)
class Stream:
    """What a caller passed as `streamer`, held by the call that will end it."""

    given: Any
    primed: bool = False
    """Whether it was given the prompt already."""

    def problems(self, rows: int, key: str = "streamer") -> list[Problem]:
        """Return what keeps it from following a decoding of `rows` rows."""
        if self.given is None:
            return []
        if not hasattr(self.given, "put"):
            if callable(self.given):
                return []
            rule = "must be a function (row, tokens) or a transformers streamer"
            return [Problem(key, rule, shown(self.given), "pass None to follow nothing")]
        if rows > 1:
            rule = "a transformers streamer takes one row"
            return [Problem(key, rule, rows, "pass a function (row, tokens)")]
        return []

    def emitter(self, prompts: list[list[int]]) -> Callable[[int, list[int]], None] | None:
        """Return a function `(row, tokens)` for the loop; a transformers streamer is first given the prompt."""
        if self.given is None:
            return None
        if not hasattr(self.given, "put"):
            callback: Callable[[int, list[int]], None] = self.given
            return callback
        if not self.primed:
            self.given.put(torch.tensor(prompts))
            self.primed = True
        return lambda _row, tokens: self.given.put(torch.tensor(tokens))


@contextmanager
def streaming(given: Any) -> Iterator[Stream]:
    """Hold `given` while a call decodes, and end it when the call ends, by returning or by raising.

    What the call raised is raised, whatever the streamer's own end runs into after it.
    """
    try:
        yield Stream(given)
    except BaseException:
        with suppress(Exception):
            _end_stream(given)
        raise
    _end_stream(given)


def _end_stream(given: Any) -> None:
    """End a streamer; one that cannot decode its last tokens lets go of whoever waits for it all the same."""
    end = getattr(given, "end", None)
    if not callable(end):
        return
    try:
        end()
    except BaseException:
        finalized = getattr(given, "on_finalized_text", None)
        if callable(finalized):
            with suppress(Exception):
                finalized("", stream_end=True)
        raise
