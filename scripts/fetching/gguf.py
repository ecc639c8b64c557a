"""A GGUF file as a plain checkpoint of dequantised float32 weights, by transformers' own reader."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssd_infer.errors import CheckpointError

READER = "the conversion needs this package"
SENTENCE = "The capital of France is Paris, and the largest city of the United States is New York."
LIMIT = 40.0
"""Perplexity of SENTENCE above which the weights cannot have been read rightly: a model that knows English stays far
below, wrong weights are in the thousands."""


def converter(name: str) -> Callable[[Path, Path], None]:
    """Return the conversion of the file `name` in one folder to a checkpoint in another.

    It raises CheckpointError when the model that comes out knows no English.
    """

    def convert(folder: Path, out: Path) -> None:
        _convert(folder / name, out)

    return convert


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    found = perplexity(model, tokenizer, SENTENCE)
    if not found < LIMIT:
        raise CheckpointError(
            f"{gguf.name}: the converted model finds plain English improbable (perplexity {found:.0f}, at most "
            f"{LIMIT:.0f} expected); this version of transformers reads the file differently"
        )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def perplexity(model: Any, tokenizer: Any, text: str) -> float:
    """Return exp of the mean negative log-probability per token of `text`, after whatever the tokenizer puts first."""
    import torch

    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.inference_mode():
        return math.exp(model.eval()(input_ids=ids, labels=ids).loss)
