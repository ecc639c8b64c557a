"""Tiny speech models of random weights, and drafts that are wrong in known places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from ssd_infer.models.ctc_asr import CTCASRConfig, CTCASRModel
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.decode import decode, token_limits

MELS = 16


def tiny_asr(seed: int = 0, vocab: int = 13, eos: float = 0.0, **changes: Any) -> Any:
    """Build a model in float64; `eos` is added to the decoder's score of ending."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    encoder = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "num_mel_bins": MELS,
        "subsampling_conv_channels": 8,
    }
    shape = {"decoder_layers": 2, "decoder_heads": 2, "decoder_hidden_size": 16, "decoder_ffn_size": 32}
    config = CTCASRConfig(vocab_size=vocab, encoder=encoder, initializer_range=0.5, **(shape | changes))
    model = CTCASRModel(config).double().eval()
    with torch.no_grad():
        model.ctc_head.weight.mul_(4)
        if config.decoder_type == "cross_attention":
            model.decoder.head.bias[config.eos_token_id] += eos
    return model


@torch.inference_mode()
def encode(model: Any, frames: Sequence[int], seed: int = 1) -> Any:
    """Encode one utterance of random features for each length in `frames`, together."""
    generator = torch.Generator().manual_seed(seed)
    waves = [torch.randn(count, MELS, generator=generator, dtype=torch.float64) for count in frames]
    padded = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)
    return model.encode(padded, torch.tensor(list(frames)))


def plain(model: Any, encoded: Any, most: int | None = None) -> list[list[int]]:
    """Return what greedy decoding without a draft gives."""
    return [row.tokens for row in decode(model, encoded, None, max_new_tokens=most).rows]


def damaged(tokens: list[int], seed: int, vocab: int) -> Draft:
    """Return `tokens` with a few substitutions, insertions and deletions, as a draft."""
    rng, made = random.Random(seed), list(tokens)
    for _ in range(rng.randint(0, 3)):
        place = rng.randrange(len(made) + 1)
        kind = rng.choice(("insert", "delete", "replace"))
        new = [] if kind == "delete" else [rng.randrange(3, vocab)]
        made[place : place + (kind != "insert")] = new
    return Draft(made, list(range(len(made))), rng.random())


def limits_of(encoded: Any, most: int | None = None) -> list[int]:
    """Return the token limits decoding uses."""
    return token_limits(encoded, most)
