"""How a checkpoint is loaded, beside its place, precision and device; known and checked without importing torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ssd_infer.errors import Problem

ROW_MASKED = ("sdpa", "eager")
"""Attention backends that take a mask of their own for every row, which drafted blocks of ragged batches need."""
_UNMASKED = re.compile(r"(paged\|.+)|(flash_attention.*)|(flex_attention)|(.+/.+)")
"""Names of transformers' other backends, kernels from the hub among them."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What transformers' `from_pretrained` takes under the same names, and an adapter; None leaves its default."""

    adapter: str | None = None
    """Directory or hub name of a LoRA adapter, kept beside the weights and not merged into them."""
    revision: str | None = None
    """Branch, tag or commit of a name on the hub."""
    device_map: Any = None
    """Where each module goes: auto, or a mapping of modules to devices, cpu and disk."""
    max_memory: Any = None
    """Most memory of each device that `device_map=auto` may fill."""
    offload_folder: str | None = None
    """Where modules that `device_map` sends to disk are kept, for weights that are no safetensors."""
    attn_implementation: str | None = None
    """sdpa or eager; backends without a mask for each row are replaced by sdpa."""
    quantization_config: Any = None
    """How weights are quantised while they load: transformers' object, or its fields."""
    cache_dir: str | None = None
    """Where what comes from the hub is kept."""
    token: str | bool | None = None
    """Token of the hub; true takes the one that is logged in."""
    gguf_file: str | None = None
    """Name of the GGUF file inside the checkpoint's directory, whose weights are dequantised."""

    def given(self) -> dict[str, Any]:
        """Return the options that are not None."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None and value != {}}

    def hub(self) -> dict[str, Any]:
        """Return what says where a name on the hub comes from."""
        return {
            name: value for name, value in self.given().items() if name in ("revision", "cache_dir", "token")
        }

    def model(self) -> dict[str, Any]:
        """Return what `from_pretrained` of the model takes."""
        return {name: value for name, value in self.given().items() if name != "adapter"}


def is_hub_name(text: str) -> bool:
    """Tell whether `text` could be a name on the hub, such as owner/name."""
    return _HUB_NAME.fullmatch(text) is not None


def revision_problems(options: LoadOptions) -> list[Problem]:
    """Return a problem for a revision of a checkpoint that is a directory."""
    rule = "belongs to a name on the hub, and the checkpoint is a directory"
    return [] if options.revision is None else [Problem("revision", rule, options.revision, "leave it out")]


def option_problems(options: LoadOptions, device: str) -> list[Problem]:
    """Return a problem for every option that contradicts another or names what is not there."""
    found, mapped = [], options.device_map is not None
    if mapped and device != "auto":
        rule = "cannot be given beside device_map, which places every module"
        found.append(Problem("device", rule, device, "leave one of them out"))
    for key in ("max_memory", "offload_folder"):
        if getattr(options, key) and not mapped:
            rule, remedy = "says how device_map is filled", "add device_map=auto"
            found.append(Problem(key, rule, getattr(options, key), remedy))
    if mapped and not isinstance(options.device_map, str | Mapping):
        rule = "must be auto, or map modules to devices"
        found.append(Problem("device_map", rule, options.device_map, "try device_map=auto"))
    backend = options.attn_implementation
    if backend is not None and not _is_backend(backend):
        rule, remedy = "must be one of transformers' attention backends", "try sdpa or eager"
        found.append(Problem("attn_implementation", rule, backend, remedy))
    config = options.quantization_config
    if isinstance(config, str | int | float):
        rule, remedy = "must be a configuration or its fields", "try {'quant_method': 'torchao', ...}"
        found.append(Problem("quantization_config", rule, config, remedy))
    if isinstance(config, Mapping) and config and not _METHODS & set(config):
        remedy = "add quantization_config.quant_method=torchao"
        found.append(Problem("quantization_config", "must say how", dict(config), remedy))
    if options.adapter is not None and not _is_adapter(options.adapter):
        rule = "must be a directory with an adapter_config.json"
        remedy = "that is what save_pretrained of a PEFT model writes"
        found.append(Problem("adapter", rule, options.adapter, remedy))
    return found


def _is_backend(name: Any) -> bool:
    return isinstance(name, str) and (name in ROW_MASKED or _UNMASKED.fullmatch(name) is not None)


_METHODS = {"quant_method", "load_in_8bit", "load_in_4bit"}


def _is_adapter(adapter: str) -> bool:
    """Tell whether `adapter` is a directory that holds one, or could be a name on the hub."""
    path = Path(adapter).expanduser()
    return (path / "adapter_config.json").is_file() or (not path.exists() and is_hub_name(adapter))
