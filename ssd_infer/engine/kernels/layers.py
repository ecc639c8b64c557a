"""Layer views that attend through grouped attention; parameters and caches are the target's own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ssd_infer.engine.kernels.grouped import BACKEND, Attend, FullAttention
from ssd_infer.engine.model_view import once
from ssd_infer.engine.target import SelfMasking, Target
from ssd_infer.engine.window import Chunk, Window
from ssd_infer.errors import UnsupportedModelError, one_line


def attention_view(target: Target, attend: Attend) -> SelfMasking:
    """Return shallow copies of the target's layers whose attention modules attend by `attend`."""
    name = target.family.sublayers.attention
    return SelfMasking(_attending(layer, name, attend) for layer in target.layers)


def _attending(layer: nn.Module, name: str, attend: Attend) -> nn.Module:
    view, module = copy.copy(layer), copy.copy(layer._modules[name])
    assert module is not None
    config: Any = copy.copy(module.config)
    config._attn_implementation_internal = BACKEND
    module.__dict__ |= {"config": config, "ssd_attend": attend}
    view._modules = layer._modules | {name: module}
    return view


def _other_reading(target: Target) -> str | None:
    """Say that some layers do not attend to the whole context, or read it otherwise; None where all attend to it."""
    if target.recurrent:
        return "some of its layers remember by recurrence, and attention is not all that reads the context"
    reach = next((reach for reach in target.reach if reach is not None), None)
    if isinstance(reach, Chunk):
        return f"its layers attend within chunks of {reach.size} tokens, which is a sparse attention already"
    if reach is not None:
        return f"its layers attend to a sliding window of {reach} tokens, which is a sparse attention already"
    return None


def _out_of_reach(target: Target) -> str | None:
    """Say that the attention of some layer cannot be told to attend otherwise; None where all can."""
    name = target.family.sublayers.attention
    for layer in target.layers:
        attention = layer._modules.get(name)
        asked = (getattr(attention, part, None) for part in ("layer_idx", "config"))
        if not target.family.interface or any(part is None for part in asked):
            return (
                f"{type(layer).__name__} has no `{name}` that goes through transformers' attention interface"
            )
        if "forward" in vars(layer) or "forward" in vars(attention):
            return "its attention was replaced by a wrapper, which would not read selected slots"
    return None


@once
@torch.inference_mode()
def unsupported_reason(target: Target) -> str | None:
    """Return None when grouped attention computes what `target` computes, otherwise the reason in one sentence.

    Look for attention modules, sliding windows and wrappers, then compare six tokens with the target's own pass.
    """
    if (reason := _other_reading(target) or _out_of_reach(target)) is not None:
        return reason
    ids = torch.arange(6, device=target.device).unsqueeze(0) % target.vocab_size
    geometry = target.geometry(6)
    outputs = []
    for grouped in (False, True):
        cache = target.new_cache(1, 6)
        layers = attention_view(target, FullAttention(cache)) if grouped else None
        try:
            for first, last in ((0, 3), (3, 6)):
                window = Window(geometry, [first], last - first)
                start = target.embed_at(ids[:, first:last], window, cache)
                hidden = target.run(start, window, cache, layers=layers)
        except UnsupportedModelError as error:
            return f"its attention cannot be computed here: {error}"
        except Exception as error:  # noqa: BLE001  the sentence says what was raised
            return f"its attention cannot be computed here: {one_line(error)}"
        outputs.append(target.logits(hidden).float())
        if len({cache.held(layer)[0].shape for layer in range(target.num_layers)}) > 1:
            return "its layers keep keys of different shapes"
    scale = float(outputs[0].abs().max()) + 1e-6
    error_share = float((outputs[0] - outputs[1]).abs().max()) / scale
    if not error_share <= max(1e-4, 8 * torch.finfo(target.dtype).eps):
        return f"its attention is not plain softmax attention: grouped attention is off by {error_share:.1e}"
    return None
