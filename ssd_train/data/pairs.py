"""Prompts with answers from JSON lines or Parquet: one sample a pair, the answer labelled, then trained end tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from ssd_infer.errors import ConfigError, DataError, Problem
from ssd_train.config.schema import HFModelConfig, LocalTextConfig, Root
from ssd_train.data import TextData, say_rules
from ssd_train.data.framing import Encoder
from ssd_train.data.local import PAIR_SUFFIXES, find_files, read_rows
from ssd_train.data.sources import content_share
from ssd_train.data.tokenizer import pretrained_tokenizer

logger = logging.getLogger(__name__)

Sample = tuple[list[int], list[int]]
"""Ids of a prompt and of its answer."""


class Pairs(Dataset[dict[str, torch.Tensor]]):
    """Samples `input_ids` and `labels`, both `(block_size,)`; labels are -100 over the prompt."""

    def __init__(self, samples: list[Sample], end: int, block_size: int) -> None:
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
    """Return the pairs of `data.path`; those held out are of `data.validation_path`, or a part by their prompts.

    A prompt begins as the tokenizer begins a text, as it will be asked. End tokens after an answer are learned like
    the answer (LLaDA, arXiv 2502.09992): they are how it ends. An answer too long for `data.block_size` is cut.
    Raises ConfigError for settings without pairs, DataError for a bad line.
    """
    source, tokenizer = _settings(cfg)
    encoder = Encoder(tokenizer, add_bos=cfg.data.add_bos, control_tokens=cfg.data.control_tokens)
    size = cfg.data.block_size
    train, held = _split(source, encoder, size)
    full = sum(len(prompt) + len(answer) >= size for prompt, answer in (*train, *held))
    if full:
        count = len(train) + len(held)
        logger.warning("data: %d of %d answers fill data.block_size and may be cut", full, count)
    if not held and len(train) > 1:
        held.append(train.pop())
    if not train or not held:
        raise DataError(f"data.path: must hold at least two pairs (got {len(train) + len(held)})")
    say_rules(encoder)
    end = tokenizer.eos_token_id
    held = held[: cfg.data.validation_blocks]
    return TextData(Pairs(train, end, size), Pairs(held, end, size), tokenizer)  # type: ignore[arg-type]


def _settings(cfg: Root) -> tuple[LocalTextConfig, Any]:
    """Return where the pairs are and their tokenizer; raise ConfigError for a run that names none."""
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
    return source, pretrained_tokenizer(model, name)


def _split(cfg: LocalTextConfig, encoder: Encoder, size: int) -> tuple[list[Sample], list[Sample]]:
    """Return training and held-out samples; every prompt is on one side only unless the files say otherwise."""
    train: list[Sample] = []
    held: list[Sample] = []
    for prompt, answer in _read(cfg, cfg.path, "data.path"):
        aside = cfg.validation_path is None and content_share(prompt) < cfg.validation_share
        (held if aside else train).append(_encode(encoder, prompt, answer, size))
    if cfg.validation_path is not None:
        for prompt, answer in _read(cfg, cfg.validation_path, "data.validation_path"):
            held.append(_encode(encoder, prompt, answer, size))
    return train, held


def _read(cfg: LocalTextConfig, pattern: str, key: str) -> Iterator[tuple[str, ...]]:
    """Yield the pairs of all files `pattern` means; raise DataError naming the first line that is none."""
    assert cfg.prompt_field is not None
    fields = {"data.prompt_field": cfg.prompt_field, "data.text_field": cfg.text_field}
    for path in find_files(pattern, key, PAIR_SUFFIXES):
        yield from read_rows(path, fields, key)


def _encode(encoder: Encoder, prompt: str, answer: str, limit: int) -> Sample:
    """Return the ids of both; raise DataError for a prompt that leaves no room for an answer."""
    asked, said = encoder.ids([prompt, answer])
    asked = [*encoder.begin, *asked]
    if len(asked) >= limit:
        raise DataError(
            f"data.block_size: a prompt of {len(asked)} tokens leaves no room for its answer (got {limit}); "
            f"try data.block_size={2 * len(asked)}"
        )
    return asked, said[: limit - len(asked)]
