"""Adapters beside a model's weights: PEFT models are decoded as the model inside them, adapters from disk join it."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from ssd_infer.errors import CheckpointError


def inner_model(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, whose layers hold the adapter; any other as it is."""
    wrapped = isinstance(model, nn.Module) and hasattr(model, "peft_config")
    inside = getattr(model, "get_base_model", None) if wrapped else None
    return inside() if callable(inside) else model


def adds_prompts(model: Any) -> bool:
    """Tell whether a PEFT model changes its input by learned prompts, which are in no layer of the model inside."""
    config = getattr(model, "active_peft_config", None) if hasattr(model, "get_base_model") else None
    return bool(getattr(config, "is_prompt_learning", False))


def add_adapter(model: Any, adapter: str, hub: dict[str, Any]) -> None:
    """Put the weights of `adapter`, a directory or a name on the hub, beside those of `model`, unmerged.

    Raises CheckpointError where it is none, belongs to another model, or PEFT is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise CheckpointError("adapter: needs the package peft; install it with pip install peft")
    where = str(Path(adapter).expanduser()) if Path(adapter).expanduser().is_dir() else adapter
    try:
        wrong = _added(model, where, hub)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        detail = lines[1] if len(lines) > 1 and lines[0].startswith("Error(s) in loading") else lines[0]
        raise CheckpointError(f"adapter: {adapter!r} does not load ({detail})") from error
    if wrong:
        raise CheckpointError(
            f"adapter: the weights in {adapter!r} do not fit this checkpoint ({wrong}); "
            "load it with the model it was trained on"
        )


def _added(model: Any, where: str, hub: dict[str, Any]) -> str:
    """Add the adapter at `where`; return which of its weights are missing or unknown to the model, nothing if none."""
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from peft.utils.save_and_load import load_peft_weights

    config: Any = PeftConfig.from_pretrained(where, **hub)
    if config.is_prompt_learning:
        raise CheckpointError(
            f"adapter: {where!r} learns prompts ({config.peft_type.value}) and changes no weights; "
            "only adapters inside layers, such as LoRA, can be decoded"
        )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        added = PeftModel.from_pretrained(model, where, **hub)
    missing = [str(line.message) for line in said if "missing adapter keys" in str(line.message)]
    saved, own = set(load_peft_weights(where, device="cpu", **hub)), set(get_peft_model_state_dict(added))
    unknown = sorted(saved - own) if len(saved) > len(own) else []
    found = [f"unknown to the model: {unknown[0]}"] if unknown else []
    return "; ".join([*(line[:160] for line in missing), *found])
