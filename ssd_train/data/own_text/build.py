"""Make or read the target's own text, and mix it with a corpus."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from ssd_infer.checkpoint.content import text_digest
from ssd_infer.errors import DataError, Problem
from ssd_train import data as text_data
from ssd_train.config.schema import HFModelConfig, Root
from ssd_train.config.schema_own_text import SelfGeneratedConfig
from ssd_train.data.contents import contents, corpus_of
from ssd_train.data.own_text.blocks import Mixture, OwnBlocks
from ssd_train.data.own_text.writing import Document, Pieces, Writer, written
from ssd_train.data.sources import content_share
from ssd_train.data.tokenizer import vocabulary_hash
from ssd_train.models import build as models
from ssd_train.models.precision import frozen_dtype

logger = logging.getLogger(__name__)

_FORMAT = 2
"""Of the pieces: those of another format are not read."""
_HELD = 0.05
"""Share of the documents held out."""


@dataclass(slots=True)
class OwnTextData:
    """Training and held-out blocks, half own text and half a corpus or as `data.own_share` says."""

    train: Mixture
    validation: Mixture
    own: OwnBlocks
    """The own text that is trained on."""
    tokenizer: Any
    tokens: int

    @property
    def processor(self) -> Any:
        """Return the tokenizer."""
        return self.tokenizer

    @property
    def sample_tokens(self) -> int:
        """Return the tokens of a block."""
        return self.own.block_size

    def describe(self) -> str:
        """Return one line a person can read."""
        return (
            f"{len(self.train):,} training blocks of {self.sample_tokens} tokens, {self.train.share:.0%} of them from "
            f"{self.tokens:,} tokens of the model's own in {len(self.own):,} blocks, {len(self.validation):,} held out"
        )


def build_own_text(cfg: Root, run_dir: Path) -> OwnTextData:
    """Return the data of `cfg.data`; every rank may call it, one writes and the others read what it wrote.

    Raises DataError where prompts or corpus cannot be read.
    """
    settings = cfg.data
    assert isinstance(settings, SelfGeneratedConfig)
    corpus = text_data.build(dataclasses.replace(cfg, data=corpus_of(settings)), run_dir)
    folder = Path(settings.cache_dir or Path(cfg.output_root) / ".cache") / _name(cfg, corpus.tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder / ".lock")):
        writer = Writer(settings, corpus.tokenizer, cfg.seed, lambda: _model(cfg))
        found = [one for piece in written(Pieces(folder), writer, settings.own_tokens) for one in piece]
    data = _mixed(found, corpus, settings)
    logger.info("data: %s", data.describe())
    return data


def _mixed(
    documents: list[Document], corpus: text_data.TextData, settings: SelfGeneratedConfig
) -> OwnTextData:
    """Hold some documents out by a hash of their prompts, and mix both sides with the corpus."""
    sides: tuple[list[Document], list[Document]] = [], []
    for prompt, text in documents:
        sides[content_share(str(prompt)) < _HELD].append((prompt, text))
    if not sides[1]:
        sides[1].append(sides[0].pop())
    if not sides[0]:
        raise _nothing_to_train_on(documents, settings)
    end = int(corpus.tokenizer.eos_token_id or 0)
    train, held = (OwnBlocks(side, settings.block_size, end) for side in sides)
    return OwnTextData(
        Mixture(train, corpus.train, settings.own_share),
        Mixture(held, corpus.validation, settings.own_share),
        train,
        corpus.tokenizer,
        sum(len(text) for _, text in sides[0]),
    )


def _nothing_to_train_on(documents: list[Document], settings: SelfGeneratedConfig) -> DataError:
    """Say why all documents are held out: there is one, or their few prompts all belong to that side."""
    if len(documents) == 1:
        return DataError("data.own_tokens: too little own text to hold some out; give a larger number")
    count = len({tuple(prompt) for prompt, _ in documents})
    rule = f"must give prompts to train on besides those held out, and all that were continued, {count}, are held out"
    return DataError(str(Problem("data.prompts", rule, settings.prompts, "give more prompts")))


def _name(cfg: Root, tokenizer: Any) -> str:
    """Return what the folder of the pieces is called, after all that they follow from."""
    settings = cfg.data
    assert isinstance(settings, SelfGeneratedConfig)
    held = {key: value for key, value in contents(cfg).items() if key != "data.corpus"}
    lengths = [settings.own_length, settings.prompt_tokens, settings.own_batch, settings.prompts]
    parts = [_FORMAT, held, vocabulary_hash(tokenizer), *lengths, cfg.seed, frozen_dtype(cfg.device)]
    return f"self_generated-{text_digest(parts)[:16]}"


def _model(cfg: Root) -> Any:
    assert isinstance(cfg.model, HFModelConfig)
    model: Any = models.pretrained(cfg.model, frozen_dtype(cfg.device))
    return model.to(cfg.device).eval().requires_grad_(requires_grad=False)
