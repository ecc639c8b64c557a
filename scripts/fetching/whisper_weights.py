"""The variables of a CTranslate2 Whisper as the weights of transformers' `WhisperForConditionalGeneration`.

CTranslate2 keeps the query, key and value projections of self-attention as one matrix, and key and value of
cross-attention as one; transformers keeps them apart, and gives the key projection no bias.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from scripts.fetching.ctranslate2 import Variables
from ssd_infer.errors import CheckpointError

REVISION = 3
GELU = 3
FIXED = {
    "decoder/activation": GELU,
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}
"""Numbers that say how the forward is computed, and what they are for the forward that transformers has."""
UNUSED = {"decoder/alignment_heads", "decoder/alignment_layer"}
TIED = {"decoder/projection/weight": "decoder/embeddings/weight"}
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class Weights:
    """The variables of a Whisper, taken one by one, so that what nobody asked for is seen at the end."""

    def __init__(self, variables: Variables) -> None:
        self._left = dict(variables.tensors)
        if variables.aliases != TIED:
            raise CheckpointError(
                f"model.bin: expected a tied output layer, found the aliases {variables.aliases}"
            )

    def has(self, name: str) -> bool:
        """Return whether the variable is there and has not been taken."""
        return name in self._left

    def number(self, name: str) -> int:
        """Take a number; raises CheckpointError where there is none."""
        tensor = self._take(name)
        if tensor.dim() or tensor.is_floating_point():
            raise CheckpointError(f"model.bin: {name} should be one whole number")
        return int(tensor)

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """Take a tensor as float32 (exact for narrower floats); None is any size.

        Raises CheckpointError for another shape or type, infinities and NaN.
        """
        tensor = self._take(name)
        if tensor.dtype not in FLOATS:
            raise CheckpointError(
                f"model.bin: {name} is quantised ({tensor.dtype}); only float weights are converted"
            )
        fits = len(shape) == tensor.dim() and all(
            want in (None, size) for want, size in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            wanted = [size or "any" for size in shape]
            raise CheckpointError(f"model.bin: {name} has the shape {list(tensor.shape)}, expected {wanted}")
        if not tensor.isfinite().all():
            raise CheckpointError(f"model.bin: {name} holds values that are not finite")
        return tensor.float()

    def finish(self) -> None:
        """Raise CheckpointError when variables are left that the converted model would ignore."""
        left = sorted(set(self._left) - UNUSED)
        if left:
            raise CheckpointError(
                f"model.bin: {len(left)} variables belong to no Whisper, the first {left[0]}"
            )

    def _take(self, name: str) -> Tensor:
        if name not in self._left:
            raise CheckpointError(f"model.bin: {name} is missing")
        return self._left.pop(name)


def convert(variables: Variables) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the dimensions, as arguments of `WhisperConfig`, and the float32 weights by transformers' names.

    Raises CheckpointError for variables that are no Whisper, or one whose forward transformers does not have.
    """
    layers = {side: _count_layers(variables.tensors, side) for side in ("encoder", "decoder")}
    weights = Weights(variables)
    for name, value in FIXED.items():
        found = weights.number(name)
        if found != value:
            raise CheckpointError(f"model.bin: {name} is {found}, transformers' Whisper has {value}")
    heads = {side: weights.number(f"{side}/num_heads") for side in ("encoder", "decoder")}
    state: dict[str, Tensor] = {}
    _read_ends(weights, state)
    vocabulary, size = state["model.decoder.embed_tokens.weight"].shape
    if any(count < 1 or size % count for count in heads.values()):
        raise CheckpointError(f"model.bin: a width of {size} cannot be split into {heads} heads")
    for side in ("encoder", "decoder"):
        for index in range(layers[side]):
            _read_layer(weights, state, f"{side}/layer_{index}", f"model.{side}.layers.{index}", size)
    weights.finish()
    return {
        "vocab_size": vocabulary,
        "d_model": size,
        "num_mel_bins": state["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": len(state["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(state["model.decoder.embed_positions.weight"]),
        **{f"{side}_layers": layers[side] for side in layers},
        **{f"{side}_attention_heads": heads[side] for side in heads},
        **{f"{side}_ffn_dim": len(state[f"model.{side}.layers.0.fc1.weight"]) for side in layers},
    }, state


def _count_layers(names: Iterable[str], side: str) -> int:
    """Return how many layers the names tell of; a gap among them is found when a layer is read."""
    found = {match[1] for name in names if (match := re.match(rf"{side}/layer_(\d+)/", name))}
    if not found:
        raise CheckpointError(f"model.bin: the {side} has no layers")
    return len(found)


def _read_ends(weights: Weights, state: dict[str, Tensor]) -> None:
    """Add what lies before and after the layers."""
    tokens = state["model.decoder.embed_tokens.weight"] = weights.tensor(
        "decoder/embeddings/weight", None, None
    )
    size = tokens.shape[1]
    first = weights.tensor("encoder/conv1/weight", size, None, 3)
    state["model.encoder.conv1.weight"] = first
    state["model.encoder.conv2.weight"] = weights.tensor("encoder/conv2/weight", size, size, 3)
    for conv in ("conv1", "conv2"):
        state[f"model.encoder.{conv}.bias"] = weights.tensor(f"encoder/{conv}/bias", size)
    for side in ("encoder", "decoder"):
        positions = weights.tensor(f"{side}/position_encodings/encodings", None, size)
        state[f"model.{side}.embed_positions.weight"] = positions
        _read_norm(weights, state, f"{side}/layer_norm", f"model.{side}.layer_norm", size)


def _read_norm(weights: Weights, state: dict[str, Tensor], old: str, new: str, size: int) -> None:
    state[f"{new}.weight"] = weights.tensor(f"{old}/gamma", size)
    state[f"{new}.bias"] = weights.tensor(f"{old}/beta", size)


def _read_layer(weights: Weights, state: dict[str, Tensor], old: str, new: str, size: int) -> None:
    """Add a layer: self-attention, in the decoder cross-attention, and the feed-forward part."""
    own = f"{new}.self_attn"
    _read_norm(weights, state, f"{old}/self_attention/layer_norm", f"{own}_layer_norm", size)
    _read_parts(weights, state, f"{old}/self_attention/linear_0", own, ("q_proj", "k_proj", "v_proj"), size)
    _read_parts(weights, state, f"{old}/self_attention/linear_1", own, ("out_proj",), size)
    if weights.has(f"{old}/attention/linear_0/weight"):
        other = f"{new}.encoder_attn"
        _read_norm(weights, state, f"{old}/attention/layer_norm", f"{other}_layer_norm", size)
        _read_parts(weights, state, f"{old}/attention/linear_0", other, ("q_proj",), size)
        _read_parts(weights, state, f"{old}/attention/linear_1", other, ("k_proj", "v_proj"), size)
        _read_parts(weights, state, f"{old}/attention/linear_2", other, ("out_proj",), size)
    _read_norm(weights, state, f"{old}/ffn/layer_norm", f"{new}.final_layer_norm", size)
    inner = weights.tensor(f"{old}/ffn/linear_0/weight", None, size)
    state[f"{new}.fc1.weight"] = inner
    state[f"{new}.fc1.bias"] = weights.tensor(f"{old}/ffn/linear_0/bias", len(inner))
    state[f"{new}.fc2.weight"] = weights.tensor(f"{old}/ffn/linear_1/weight", size, len(inner))
    state[f"{new}.fc2.bias"] = weights.tensor(f"{old}/ffn/linear_1/bias", size)


def _read_parts(
    weights: Weights, state: dict[str, Tensor], old: str, new: str, parts: tuple[str, ...], size: int
) -> None:
    """Add the projections that one matrix holds one below the other."""
    matrix = weights.tensor(f"{old}/weight", len(parts) * size, size).split(size)
    bias = weights.tensor(f"{old}/bias", len(parts) * size).split(size)
    for part, weight, shift in zip(parts, matrix, bias, strict=True):
        state[f"{new}.{part}.weight"] = weight.contiguous()
        if part != "k_proj":
            state[f"{new}.{part}.bias"] = shift.contiguous()
        elif shift.any():
            raise CheckpointError(f"model.bin: {old} gives the keys a bias, transformers' Whisper has none")
