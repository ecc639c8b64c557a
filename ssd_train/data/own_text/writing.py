"""Let the target go on with prompts, one kept piece after another: a run that was killed goes on with the next piece.

A piece is a batch of documents. What it holds follows from its number, the prompts, the settings and the weights
alone, so that it does not matter when, and in how many starts, the pieces were made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ssd_infer.atomic import write_text
from ssd_infer.engine.loop import decode
from ssd_infer.engine.request import read_stop
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.errors import DataError
from ssd_infer.jsonio import from_json, to_json
from ssd_train.config.schema_own_text import SelfGeneratedConfig
from ssd_train.data.own_text.prompts import QUESTION, Prompts

logger = logging.getLogger(__name__)

Document = tuple[list[int], list[int]]
"""Ids of a prompt and of what the target went on with."""
_SECONDS = 10.0
"""Between two lines of progress."""


@dataclass(slots=True)
class Pieces:
    """The pieces of one folder, kept as JSON lines."""

    folder: Path

    def read(self, number: int) -> list[Document] | None:
        """Return the documents of a piece, None where it was not made yet or is damaged."""
        path = self.folder / f"piece-{number:05d}.jsonl"
        try:
            rows = [from_json(line) for line in path.read_text("utf-8").splitlines()]
            return [(row["prompt"], row["text"]) for row in rows]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            logger.warning("data: %s is damaged and is made again", path)
            return None

    def write(self, number: int, documents: Sequence[Document]) -> None:
        """Keep a piece, whole or not at all; raises DataError where it cannot be written."""
        lines = [to_json({"prompt": prompt, "text": text}) for prompt, text in documents]
        try:
            write_text(self.folder / f"piece-{number:05d}.jsonl", "\n".join(lines) + "\n")
        except OSError as error:
            raise DataError(
                f"data.cache_dir: own text cannot be kept (got {str(self.folder)!r}: {error.strerror or error}); "
                "free space or set data.cache_dir to another disk"
            ) from error


class Writer:
    """A target that writes; loaded when the first missing piece is asked for."""

    def __init__(self, data: SelfGeneratedConfig, tokenizer: Any, seed: int, load: Any) -> None:
        """Keep the settings; `load` returns the model. Raises DataError where invented questions have no room."""
        self.data, self.seed, self._load = data, seed, load
        self._prompts = Prompts(data, tokenizer, seed)
        self._found: tuple[Any, Target] | None = None  # a target does not keep its model alive

    def piece(self, number: int) -> list[Document]:
        """Return the documents of piece `number`."""
        names = self.data.prompts
        name, turn = names[number % len(names)], number // len(names)
        order = self._prompts.order(name, turn)
        prompts = order.prompts if order.behind is None else self._asked(order.prompts, order.behind, number)
        texts = self._continued(prompts, self.data.own_length, number, greedy=order.greedy)
        return [(prompt, text) for prompt, text in zip(prompts, texts, strict=True) if text]

    def _asked(self, prompts: list[list[int]], behind: list[int], number: int) -> list[list[int]]:
        """Let the model write what it will be asked, sampled whatever its answers are, and close the user's turn."""
        room = self.data.prompt_tokens - len(prompts[0]) - len(behind)
        said = self._continued(prompts, min(QUESTION, room), number + (1 << 20), greedy=False)
        ends = self._stop().eos if behind else frozenset[int]()
        asked = []
        for begin, text in zip(prompts, said, strict=True):
            question = text[:-1] if text and text[-1] in ends else text
            asked.append([*begin, *question, *behind])
        return asked

    def _continued(
        self, prompts: list[list[int]], most: int, number: int, *, greedy: bool
    ) -> list[list[int]]:
        target = self.target
        sampler = Sampler(SamplingParams(do_sample=not greedy), target.device, self.seed * 7919 + number)
        with torch.inference_mode():
            texts, _ = decode(target, prompts, None, None, most, sampler, self._stop())
        return texts

    def _stop(self) -> StopRule:
        return read_stop(self.target.model, None, None, [])

    @property
    def target(self) -> Target:
        """The model, loaded once."""
        if self._found is None:
            model = self._load()
            self._found = model, Target.of(model)
        return self._found[1]


def written(pieces: Pieces, writer: Writer, wanted: int) -> Iterator[list[Document]]:
    """Yield pieces until they hold `wanted` tokens of the target's own; make and keep those that are missing."""
    tokens, number, made = 0, 0, 0
    started = spoke = time.monotonic()
    while tokens < wanted:
        found = pieces.read(number)
        if found is None:
            found = writer.piece(number)
            pieces.write(number, found)
            made += sum(len(text) for _, text in found)
        tokens += sum(len(text) for _, text in found)
        number += 1
        if made and (time.monotonic() - spoke >= _SECONDS or tokens >= wanted):
            spoke = time.monotonic()
            rate = made / (spoke - started)
            left = max(0, wanted - tokens) / rate
            logger.info(
                "own text: %s of %s tokens, %.0f a second, about %.0f s left",
                f"{tokens:,}",
                f"{wanted:,}",
                rate,
                left,
            )
        yield found
