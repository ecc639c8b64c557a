"""transformers' own decoding of the same model: the second baseline, and what a user would pick instead."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ssd_infer.engine.devices import input_device
from ssd_infer.engine.generation_rules import switched_off
from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.contenders import Contender, Decode, Prompts
from ssd_infer.evaluation.latency import Listener
from ssd_infer.strategies.study import Sampling

LOOKUP_TOKENS = 10
"""transformers' documented `prompt_lookup_num_tokens`."""


def eos_ids(model: Any) -> list[int]:
    """Return the model's end-of-sequence ids as a list."""
    config = getattr(model, "generation_config", None) or model.config
    eos = getattr(config, "eos_token_id", None)
    return [] if eos is None else list(eos) if isinstance(eos, (list, tuple)) else [int(eos)]


def hf_decode(model: Any, sampling: Sampling, listener: Listener | None = None, **extra: Any) -> Decode:
    """Return a decode function that calls `model.generate` on left-padded prompts, heard by `listener`.

    Rules of the model's generation config are off, as they are for everyone it is compared with.
    """
    eos = eos_ids(model)
    pad = eos[0] if eos else 0

    def decode(prompts: Prompts, max_new_tokens: int, seed: int) -> tuple[list[list[int]], Stats | None]:
        torch.manual_seed(seed)
        ids, mask = left_pad(prompts, pad, input_device(model))
        config = model.config.get_text_config()
        before = config.num_hidden_layers
        try:
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                eos_token_id=eos or None,
                streamer=listener,
                **switched_off(model) | sampling.arguments() | extra,
            )
        finally:
            config.num_hidden_layers = before
        return [cut_at_eos(row, eos) for row in out[:, ids.shape[1] :].tolist()], None

    return decode


def left_pad(prompts: Prompts, pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask `(B, T)`, prompts aligned at the right."""
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def cut_at_eos(tokens: list[int], eos: list[int]) -> list[int]:
    """Keep tokens up to the first end-of-sequence id, that one included."""
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens


def listener_for(model: Any) -> Listener | None:
    """Return who hears what `generate` decodes: nobody where handing tokens over would make the device wait."""
    return Listener() if input_device(model).type == "cpu" else None


def hf_baseline(model: nn.Module, sampling: Sampling) -> Contender:
    """Return plain `generate`."""
    ears = listener_for(model)
    return Contender(
        f"transformers_generate{sampling.suffix}", "baseline", hf_decode(model, sampling, ears), listener=ears
    )


def hf_peers(model: nn.Module, sampling: Sampling, exit_layer: int) -> list[Contender]:
    """Return prompt lookup, and for greedy decoding `assistant_early_exit` at the exit our own draft uses."""
    ears = listener_for(model)
    lookup = hf_decode(model, sampling, ears, prompt_lookup_num_tokens=LOOKUP_TOKENS)
    peers = [
        Contender(
            f"prompt_lookup{sampling.suffix}",
            "peer",
            lookup,
            params={"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            listener=ears,
        )
    ]
    if sampling.greedy:
        ears = listener_for(model)
        assistant = hf_decode(model, sampling, ears, assistant_early_exit=exit_layer)
        params = {"assistant_early_exit": exit_layer}
        peers.append(Contender("assistant_early_exit", "peer", assistant, params=params, listener=ears))
    return peers
