"""Tiny masked-diffusion models of random weights, and decodings with drafts of a test's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.families.diffusion.block_loop import Run, decode
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.reader import Reader
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.models.masked_diffusion import MDMConfig, MDMForMaskedLM
from ssd_infer.strategies.fewer_steps import generate as api
from ssd_infer.strategies.fewer_steps.drafts import StateDrafter

VOCABULARY = 23
MASK = VOCABULARY - 1
BLOCK_CAUSAL, BIDIRECTIONAL = "bd3lm", "mdlm"


def build(
    seed: int = 0,
    objective: str = BLOCK_CAUSAL,
    block: int = 4,
    *,
    layers: int = 2,
    family: str = "llama",
    vocabulary: int = VOCABULARY,
    dtype: torch.dtype = torch.float64,
    eos: int | None = None,
    attention: str = "sdpa",
    **changes: Any,
) -> Any:
    """Build a model from `seed`; the last id is the mask token."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    backbone = AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
        attn_implementation=attention,
    )
    config = MDMConfig(backbone, vocabulary - 1, objective, block, **changes)
    return MDMForMaskedLM(config).to(dtype).eval()


def prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Return random prompts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, MASK, (length,), generator=generator).tolist() for length in lengths]


def begin(
    model: nn.Module,
    rows: Sequence[Sequence[int]],
    tokens: int,
    sampler: Mapping[str, Any],
    drafter: StateDrafter | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Run:
    """Return a decoding with any drafter object that has made no call yet."""
    denoiser = Denoiser.of(model)
    settings = SamplerSettings.of(model.config, sampler)
    sampling = SamplingParams(temperature > 0, temperature or 1.0)
    canvases = api.lay_out(denoiser, settings, rows, tokens, frozenset(), seed)
    return api.start(denoiser, settings, canvases, Reader(denoiser, settings, sampling), drafter)


def decoded(*given: Any, **named: Any) -> list[list[int]]:
    """Decode as `begin` is told and return the outputs."""
    return decode(begin(*given, **named))
