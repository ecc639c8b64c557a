"""Prompts with answers from JSON lines: one sample a pair, the answer labelled, filled up with trained end tokens."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoTokenizer

from ssd_infer.errors import ConfigError, DataError, Problem
from ssd_train.config.schema import HFModelConfig, LocalTextConfig, Root
from ssd_train.data import TextData
from ssd_train.data.sources import content_share

logger = logging.getLogger(__name__)


class Pairs(Dataset[dict[str, torch.Tensor]]):
    """Samples `input_ids` and `labels`, both `(block_size,)`; labels are -100 over the prompt."""

    def __init__(self, samples: list[tuple[list[int], list[int]]], end: int, block_size: int) -> None:
        self.samples, self.end, self.block_size = samples, end, block_size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        prompt, answer = self.samples[index]
        ids = torch.full((self.block_size,), self.end, dtype=torch.long)
        ids[: len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        labels = ids.clone()
        labels[: len(prompt)] = -100
        return {"input_ids": ids, "labels": labels}

    @property
    def tokens(self) -> int:
        """Return the tokens of all samples, end tokens included."""
        return len(self.samples) * self.block_size


def build_pairs(cfg: Root) -> TextData:
    """Return the pairs of `data.path`, a part of them held out; every text of a pair is on one side only.

    End tokens after an answer are learned like the answer (LLaDA, arXiv 2502.09992): they are how it ends. An answer
    too long for `data.block_size` is cut. Raises ConfigError for settings without pairs, DataError for a bad line.
    """
    source, model = cfg.data, cfg.model
    if not isinstance(source, LocalTextConfig) or source.prompt_field is None:
        rule = "learns answers to prompts, which data=local with data.prompt_field has"
        raise ConfigError(
            [Problem("recipe.objective", rule, "llada_sft", "set both, or recipe.objective=llada")]
        )
    name = model.name if isinstance(model, HFModelConfig) else getattr(model, "tokenizer", None)
    if name is None:
        rule = "must be given for pairs, which are too little to train a tokenizer on"
        raise ConfigError([Problem("model.tokenizer", rule, None, "use model=hf, or name a tokenizer")])
    tokenizer = AutoTokenizer.from_pretrained(name)
    train: list[tuple[list[int], list[int]]] = []
    held: list[tuple[list[int], list[int]]] = []
    cut = 0
    for prompt, answer in _read(Path(source.path).expanduser(), source.prompt_field, source.text_field):
        pair = _encode(tokenizer, prompt, answer, cfg.data.block_size)
        cut += len(pair[0]) + len(pair[1]) >= cfg.data.block_size
        (held if content_share(prompt) < source.validation_share else train).append(pair)
    if cut:
        logger.warning(
            "data: %d of %d answers fill data.block_size and may be cut", cut, len(train) + len(held)
        )
    if not held and len(train) > 1:
        held.append(train.pop())
    if not train or not held:
        raise DataError(f"data.path: must hold at least two pairs (got {len(train) + len(held)})")
    end, size = tokenizer.eos_token_id, cfg.data.block_size
    held = held[: cfg.data.validation_blocks]
    return TextData(Pairs(train, end, size), Pairs(held, end, size), tokenizer)  # type: ignore[arg-type]


def _encode(tokenizer: Any, prompt: str, answer: str, limit: int) -> tuple[list[int], list[int]]:
    """Return the ids of both; raise DataError for a prompt that leaves no room for an answer."""
    asked, said = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    if len(asked) >= limit:
        raise DataError(
            f"data.block_size: a prompt of {len(asked)} tokens leaves no room for its answer (got {limit}); "
            f"try data.block_size={2 * len(asked)}"
        )
    return asked, said[: limit - len(asked)]


def _read(path: Path, prompt: str, answer: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a JSON lines file; raise DataError naming the first line that is none."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                pair = row[prompt], row[answer]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"data.path: line {number} of {path} is no object with {prompt!r} and {answer!r} ({error!r})"
                ) from error
            if not all(isinstance(text, str) for text in pair):
                raise DataError(
                    f"data.path: line {number} of {path} must hold text in {prompt!r} and {answer!r}"
                )
            yield pair
