"""A GGUF conversion is believed only when the model that comes out finds English probable."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from scripts.fetching import gguf
from ssd_infer.errors import CheckpointError


class _Letters:
    """A tokenizer of bytes."""

    def __call__(self, text: str, return_tensors: str) -> SimpleNamespace:
        return SimpleNamespace(input_ids=torch.tensor([list(text.encode())]))

    def save_pretrained(self, out: Path) -> None:
        (out / "tokenizer.json").write_text("{}")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the random model that stands for what transformers read from a file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    found = LlamaForCausalLM(config)
    found.config.quantization_config = {"bits": 4}
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda **where: asked.append(where) or found)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda **where: _Letters())
    found.asked = asked
    return found


def test_perplexity_is_that_of_the_tokens_after_the_first(model: Any) -> None:
    ids = torch.tensor([list(b"hello")])
    logs = model(input_ids=ids).logits.detach().log_softmax(-1)
    expected = math.exp(-sum(float(logs[0, at, ids[0, at + 1]]) for at in range(4)) / 4)
    assert gguf.perplexity(model, _Letters(), "hello") == pytest.approx(expected, rel=1e-5)


def test_a_model_that_knows_no_english_is_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"m\.gguf: the converted model finds plain English improbable"):
        gguf.converter("m.gguf")(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_becomes_a_plain_checkpoint(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "perplexity", lambda *_: 12.0)
    gguf.converter("m.gguf")(tmp_path, tmp_path / "out")
    assert model.asked[0]["gguf_file"] == "m.gguf"
    config = (tmp_path / "out" / "config.json").read_text()
    assert '"dtype": "float32"' in config
    assert "quantization_config" not in config


def test_a_perplexity_that_is_no_number_is_refused(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "perplexity", lambda *_: math.nan)
    with pytest.raises(CheckpointError, match="improbable"):
        gguf.converter("m.gguf")(tmp_path, tmp_path / "out")
