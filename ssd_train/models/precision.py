"""In which precision a checkpoint's weights are written: training keeps them in float32 whatever they came as.

A pretrained model of 16-bit weights is saved as one again (`train.save_dtype=auto`), so that a checkpoint is as large
as its base and loads as it did. The weights that training goes on from stand beside it in float32 where the engine does
not keep them anyway: a resumed run must not feel the rounding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ssd_infer.jsonio import from_json, to_json
from ssd_train.config.schema import HFModelConfig, Root
from ssd_train.losses.processor import multiplies_bfloat16
from ssd_train.models import build as models

FILE = "training_weights.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NARROW = {"bfloat16", "float16"}
_HEADER = {"BF16": "bfloat16", "F16": "float16"}


def saved_dtype(cfg: Root) -> str:
    """Return the precision checkpoints of this run are saved in.

    A weight average is not rounded: after each save it would go on from what was left of it.
    """
    if cfg.train.save_dtype != "auto":
        return cfg.train.save_dtype
    averaged = getattr(cfg.recipe, "ema", 0.0) > 0
    base = None if averaged or not isinstance(cfg.model, HFModelConfig) else base_dtype(cfg.model)
    return base if base in _NARROW else "float32"


def base_dtype(source: HFModelConfig) -> str | None:
    """Return the precision a pretrained model is kept in, None where neither its config nor its files say."""
    stated = str(getattr(models.hf_config(source), "dtype", None)).removeprefix("torch.")
    if stated != "None":
        return stated
    files = sorted(Path(source.name).expanduser().glob("*.safetensors"))
    return next((name for file in files for name in _kept(file)), None)


def frozen_dtype(device: str, asked: str = "auto") -> str:
    """Return the precision in which a model computes that nobody trains: by the processor's own word, if `auto`."""
    if asked != "auto":
        return asked
    fast = torch.cuda.is_bf16_supported() if device.startswith("cuda") else multiplies_bfloat16()
    return "bfloat16" if fast else "float32"


def describe(cfg: Root) -> str:
    """Say in a few words how weights are kept and written."""
    saved = saved_dtype(cfg)
    if isinstance(cfg.model, HFModelConfig):
        base = base_dtype(cfg.model)
        return f"trained in float32, saved in {saved}" + (
            f"; the base is {base}" if base != saved else " as the base"
        )
    return f"trained and saved in {saved}" if saved == "float32" else f"trained in float32, saved in {saved}"


def narrowed(model: nn.Module, state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return `state` with the parameters of `model` in `dtype`, in host memory; tensors that were one stay one.

    What the architecture always computes in float32, and buffers, keep their precision.
    """
    whole = _wide_names(model)
    buffers = {name for name, _ in model.named_buffers()}
    made: dict[tuple[int, torch.Size], Tensor] = {}
    result = {}
    for name, value in state.items():
        if not value.is_floating_point() or name in buffers or any(part in name for part in whole):
            result[name] = value
            continue
        place = (value.data_ptr() or id(value), value.shape)
        if place not in made:
            made[place] = value.detach().to(dtype).cpu()
        result[name] = made[place]
    return result


def note_dtype(directory: Path, dtype: str) -> None:
    """Make the `config.json` in `directory` say that the weights beside it are in `dtype`."""
    file = directory / "config.json"
    config = _with_dtype(json.loads(file.read_text(encoding="utf-8")), dtype)
    file.write_text(to_json(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def save_training_weights(model: nn.Module, directory: Path) -> None:
    """Write the weights that training goes on from, beside narrower ones."""
    save_file(
        {name: value.detach().contiguous() for name, value in model.named_parameters()}, directory / FILE
    )


@torch.no_grad()
def restore_training_weights(model: nn.Module, directory: Path) -> None:
    """Give `model` the weights that training goes on from, where a checkpoint has them beside narrower ones."""
    if not (directory / FILE).exists():
        return
    stored = load_file(directory / FILE)
    for name, value in model.named_parameters():
        value.copy_(stored[name])


def _wide_names(model: nn.Module) -> set[str]:
    """Return parts of names of the parameters that the architecture keeps in float32."""
    lists = (getattr(model, f"_keep_in_fp32_modules{suffix}", None) for suffix in ("", "_strict"))
    return {part for names in lists for part in names or ()}


def _with_dtype(config: Any, dtype: str) -> Any:
    """Return a configuration, nested ones included, whose `dtype` is `dtype` wherever one stands."""
    if not isinstance(config, dict):
        return config
    return {
        key: dtype
        if key in ("dtype", "torch_dtype") and isinstance(value, str)
        else _with_dtype(value, dtype)
        for key, value in config.items()
    }


def _kept(file: Path) -> Iterator[str]:
    """Yield the 16-bit precisions named in the header of a safetensors file, the most frequent one of its matrices."""
    with file.open("rb") as stream:
        header = from_json(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    kinds = [
        entry["dtype"] for name, entry in header.items() if name != "__metadata__" and len(entry["shape"]) > 1
    ]
    if kinds:
        yield _HEADER.get(max(set(kinds), key=kinds.count), "float32")
