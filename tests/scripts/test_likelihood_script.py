"""The likelihood script: checkpoints of both kinds in one table, and what cannot be compared refused in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd_train.data.tokenizer import train_bpe
from tests.families.diffusion.support import build
from tests.scripts.load import load_script
from tests.train.support import tiny_llama

TEXTS = ["alpha beta gamma delta", "one two three four"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the script, with short passages of its own."""
    module = load_script("likelihood")
    monkeypatch.setattr(module, "passages", lambda count, characters: TEXTS)
    return module


def saved(folder: Path, model: Any, vocabulary: int, positions: int = 128) -> str:
    """Save a model of either kind with a byte-level tokenizer of this size."""
    config = getattr(model.config, "backbone_config", model.config)
    config.max_position_embeddings = positions
    model.to(torch.float32).save_pretrained(folder)
    train_bpe(TEXTS * 9, vocabulary, 64).save_pretrained(folder)
    return str(folder)


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["likelihood.py", "--samples", "32", *arguments])
    script.main()


def test_both_kinds_and_different_tokenizers_are_compared_by_the_character(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    causal = saved(tmp_path / "causal", tiny_llama(2, vocab_size=300), 262)
    denoiser = saved(tmp_path / "denoiser", build(0, vocabulary=300), 280)
    run(script, monkeypatch, causal, denoiser)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2].strip() for row in rows] == ["autoregressive", "block_exact_count", "left_to_right"]
    assert all("nan" not in "".join(row) for row in rows)
    assert int(rows[0][6]) > int(rows[1][6])


def test_what_cannot_be_compared_is_refused_in_words(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = saved(tmp_path / "short", build(0, vocabulary=300), 262, positions=8)
    bare = tmp_path / "bare"
    build(0).to(torch.float32).save_pretrained(bare)
    for arguments, words in (
        ((short,), "has 8 positions, and a passage takes"),
        ((str(bare),), "has no language model and tokenizer with an end token"),
        ((short, "--samples", "16"), "--samples must be at least 32"),
    ):
        with pytest.raises(SystemExit, match="2"):
            run(script, monkeypatch, *arguments)
        assert words in capsys.readouterr().err
