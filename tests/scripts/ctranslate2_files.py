"""Write CTranslate2 model files for tests, and say what a Whisper of transformers is called in one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

TYPES = {
    torch.float32: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
}
TIED = {"decoder/projection/weight": "decoder/embeddings/weight"}


def variable(name: str, tensor: Tensor) -> bytes:
    """Return one variable as it stands in a file."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    head = struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
    return _name(name) + head + struct.pack("<BI", TYPES[tensor.dtype], len(raw)) + raw


def encode(
    variables: Mapping[str, Tensor],
    aliases: Mapping[str, str] = TIED,
    *,
    version: int = 6,
    specification: str = "WhisperSpec",
    revision: int = 3,
) -> bytes:
    """Return the bytes of a model file."""
    parts = [struct.pack("<I", version), _name(specification), struct.pack("<II", revision, len(variables))]
    parts += [variable(name, tensor) for name, tensor in variables.items()]
    parts += [struct.pack("<I", len(aliases))]
    parts += [_name(alias) + _name(name) for alias, name in aliases.items()]
    return b"".join(parts)


def _name(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def whisper_variables(model: Any, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """Return the variables of a `WhisperForConditionalGeneration`, joined as CTranslate2 joins them."""
    state = {name: tensor.detach() for name, tensor in model.model.state_dict().items()}
    found: dict[str, Tensor] = {}
    for side in ("encoder", "decoder"):
        heads = getattr(model.config, f"{side}_attention_heads")
        found[f"{side}/num_heads"] = torch.tensor(heads, dtype=torch.int16)
        found[f"{side}/position_encodings/encodings"] = state[f"{side}.embed_positions.weight"]
        _norm(found, state, f"{side}/layer_norm", f"{side}.layer_norm")
        for index in range(getattr(model.config, f"{side}_layers")):
            _layer(found, state, f"{side}/layer_{index}", f"{side}.layers.{index}")
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            found[f"encoder/{conv}/{kind}"] = state[f"encoder.{conv}.{kind}"]
    found["decoder/embeddings/weight"] = state["decoder.embed_tokens.weight"]
    numbers = {
        "activation": 3,
        "alibi": 0,
        "pre_norm": 1,
        "scale_embeddings": 0,
        "start_from_zero_embedding": 0,
    }
    found |= {f"decoder/{name}": torch.tensor(value, dtype=torch.int8) for name, value in numbers.items()}
    found["decoder/alignment_heads"] = torch.tensor(1, dtype=torch.int16)
    found["decoder/alignment_layer"] = torch.tensor(-1, dtype=torch.int16)
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in found.items()
    }


def _norm(found: dict[str, Tensor], state: Mapping[str, Tensor], new: str, old: str) -> None:
    found[f"{new}/gamma"], found[f"{new}/beta"] = state[f"{old}.weight"], state[f"{old}.bias"]


def _joined(found: dict[str, Tensor], state: Mapping[str, Tensor], new: str, old: str, parts: str) -> None:
    names = [f"{old}.{part}_proj" for part in parts.split()]
    found[f"{new}/weight"] = torch.cat([state[f"{name}.weight"] for name in names])
    biases = [state.get(f"{name}.bias", torch.zeros(len(state[f"{name}.weight"]))) for name in names]
    found[f"{new}/bias"] = torch.cat(biases)


def _layer(found: dict[str, Tensor], state: Mapping[str, Tensor], new: str, old: str) -> None:
    _norm(found, state, f"{new}/self_attention/layer_norm", f"{old}.self_attn_layer_norm")
    _joined(found, state, f"{new}/self_attention/linear_0", f"{old}.self_attn", "q k v")
    _joined(found, state, f"{new}/self_attention/linear_1", f"{old}.self_attn", "out")
    if f"{old}.encoder_attn.q_proj.weight" in state:
        _norm(found, state, f"{new}/attention/layer_norm", f"{old}.encoder_attn_layer_norm")
        _joined(found, state, f"{new}/attention/linear_0", f"{old}.encoder_attn", "q")
        _joined(found, state, f"{new}/attention/linear_1", f"{old}.encoder_attn", "k v")
        _joined(found, state, f"{new}/attention/linear_2", f"{old}.encoder_attn", "out")
    _norm(found, state, f"{new}/ffn/layer_norm", f"{old}.final_layer_norm")
    for linear, inner in (("linear_0", "fc1"), ("linear_1", "fc2")):
        for kind in ("weight", "bias"):
            found[f"{new}/ffn/{linear}/{kind}"] = state[f"{old}.{inner}.{kind}"]
