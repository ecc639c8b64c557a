"""Small speech models of random weights for the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.models.ctc_asr import CTCASRConfig, CTCASRModel

ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_mel_bins": 40,
    "subsampling_conv_channels": 8,
    "initializer_range": 0.2,
    "dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
}
LANGUAGE_MODEL = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FORMS: dict[str, dict[str, Any]] = {
    "cross_attention": {},
    "causal_lm": {"decoder_type": "causal_lm", "language_model": LANGUAGE_MODEL},
}


def tiny_asr(form: str = "cross_attention", *, seed: int = 0, **changes: Any) -> CTCASRModel:
    """Return a speech model of width 32 in evaluation mode, weights wide enough that no two tokens tie."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    settings = {
        "encoder": ENCODER,
        "decoder_layers": 2,
        "decoder_hidden_size": 32,
        "decoder_ffn_size": 48,
        "decoder_dropout": 0.0,
        "initializer_range": 0.3,
    }
    return CTCASRModel(CTCASRConfig(**{**settings, **FORMS[form], **changes})).eval()


def features(*frames: int, seed: int = 1, mel: int = 40) -> tuple[Tensor, Tensor]:
    """Return random features `(B, max, mel)` padded with zeros, and the lengths `frames`."""
    generator = torch.Generator().manual_seed(seed)
    padded = torch.zeros(len(frames), max(frames), mel)
    for row, length in enumerate(frames):
        padded[row, :length] = torch.randn(length, mel, generator=generator)
    return padded, torch.tensor(frames)
