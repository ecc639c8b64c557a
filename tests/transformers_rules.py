"""The logits processors that transformers itself makes for a row decoded alone: what ours are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def processors(
    model: Any, prompt: Sequence[int], eos: Sequence[int] = (), do_sample: bool = False, **settings: Any
) -> Any:
    """Return the list that `generate` would apply to a row that begins with `prompt`, warpers included."""
    config, _ = model._prepare_generation_config(
        None, do_sample=do_sample, eos_token_id=list(eos) or None, pad_token_id=0, **settings
    )
    ids = torch.tensor([list(prompt)])
    model._prepare_special_tokens(config, True, device=ids.device, batch_size=1)
    return model._get_logits_processor(
        config, input_ids_seq_length=len(prompt), encoder_input_ids=ids, device="cpu", model_kwargs={}
    )


def processed(
    model: Any, prompt: Sequence[int], new: Sequence[Sequence[int]], logits: Tensor, **given: Any
) -> Tensor:
    """Return the scores `(N, V)` that follow `prompt` and each of `new`, which are of one length."""
    ids = torch.tensor([[*prompt, *text] for text in new])
    scores = logits.to(torch.float32, copy=True)
    made = processors(model, prompt, **given)
    rows = [made(ids[at : at + 1], scores[at : at + 1]) for at in range(len(ids))]
    found: Tensor = torch.cat(rows)
    return found
