"""A recipe decides what data, model, batches and saved processor are; the rest of a run does not care."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from ssd_infer.errors import ConfigError, Problem
from ssd_train import data, run
from ssd_train.config.schema import Root
from ssd_train.data.tokenizer import train_bpe
from ssd_train.models import build as models
from ssd_train.recipes import registry as recipes
from ssd_train.recipes.base import batch_rows, stack
from ssd_train.recipes.plain.recipe import PlainRecipe
from tests.train.support import Samples, tiny_llama, tiny_root, tokens

TEXT = ["alpha beta gamma delta", "one two three"] * 8


class OwnData:
    """Samples whose length differs, with a tokenizer that is not the text pipeline's."""

    def __init__(self) -> None:
        self.train = Samples([{"input_ids": row[: 6 + i % 5]} for i, row in enumerate(tokens(32))])
        self.validation = Samples([{"input_ids": row} for row in tokens(4, seed=5)])
        self.processor = train_bpe(TEXT, 270, 32)
        self.processor.add_tokens(["<own>"])
        self.sample_tokens = 8

    def describe(self) -> str:
        return "32 samples made by hand"


def padded(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Pad on the right; samples arrive with a name of their own for the ids, as speech features would."""
    width = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = sample["input_ids"]
        mask[row, : len(sample["input_ids"])] = 1
    return {"attention_mask": mask, "input_ids": ids}


class OwnRecipe(PlainRecipe):
    """A recipe that replaces everything there is to replace."""

    def check(self, cfg: Root) -> None:
        if cfg.seed == 13:
            raise ConfigError([Problem("seed", "must be lucky", 13)])

    def build_data(self, cfg: Root, run_dir: Path) -> Any:
        return OwnData()

    def build_model(self, cfg: Root, data: Any) -> torch.nn.Module:
        return tiny_llama(layers=3)

    def collator(self, data: Any) -> Any:
        return padded


def test_a_recipe_replaces_data_model_collator_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "get", lambda name: OwnRecipe)
    done = run.train(tiny_root(tmp_path, plain=True, max_steps=2, logging_steps=1))
    checkpoint = done / "checkpoints" / "step-2"
    assert json.loads((checkpoint / "config.json").read_text())["num_hidden_layers"] == 3
    assert "<own>" in AutoTokenizer.from_pretrained(checkpoint).get_vocab()
    assert not (done / "tokenizer").exists()
    lines = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    assert 0 < lines[-1]["eval_loss"] < 10


def test_a_recipe_refuses_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "get", lambda name: OwnRecipe)
    cfg = tiny_root(tmp_path, plain=True)
    cfg.seed = 13
    with pytest.raises(ConfigError, match="must be lucky"):
        run.train(cfg)
    assert not cfg.run_dir.exists()


def test_the_defaults_are_the_text_pipeline_and_the_causal_model(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    recipe = recipes.build(cfg.recipe)
    made = recipe.build_data(cfg, cfg.run_dir)
    plain = data.build(cfg, cfg.run_dir)
    assert isinstance(made, data.TextData)
    assert made.processor is made.tokenizer
    assert made.sample_tokens == cfg.data.block_size
    assert all(
        torch.equal(made.train[i]["input_ids"], plain.train[i]["input_ids"]) for i in range(len(plain.train))
    )
    built, expected = recipe.build_model(cfg, made), models.build(cfg.model, plain.tokenizer, seed=cfg.seed)
    assert all(map(torch.equal, built.parameters(), expected.parameters()))
    batch = recipe.collator(made)([made.train[0], made.train[1]])
    assert torch.equal(
        batch["input_ids"], torch.stack([plain.train[0]["input_ids"], plain.train[1]["input_ids"]])
    )
    assert batch_rows(batch) == 2
    assert recipe.collator(made) is stack
