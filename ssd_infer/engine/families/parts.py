"""Find the parts of a model where its family says they are."""

from __future__ import annotations

from typing import Any

from torch import nn

from ssd_infer.engine.families.base import Parts

_SUPPORTED = "supported: the families of docs/families.md, and decoders built like Llama"


def base_path(model: nn.Module, parts: Parts) -> tuple[str, ...]:
    """Return the attributes that lead from `model` to its base model."""
    return parts.base or (str(getattr(model, "base_model_prefix", "model")),)


def base_of(model: nn.Module, parts: Parts) -> nn.Module | str:
    """Return the base model, or a sentence that names every part `model` lacks."""
    path = base_path(model, parts)
    base = chain_of(model, path)
    if not isinstance(base, nn.Module):
        return f"it has no base model under the name `{'.'.join(path)}`"
    wanted = [
        (parts.embedding, "token embeddings", False),
        (parts.layers, "single list of decoder layers", False),
        *((name, "final norm", hasattr(base, name)) for name in parts.norm),
    ]
    lacking = parts.rotary is None or parts.may_lack_rotary or hasattr(base, parts.rotary)
    wanted += [] if parts.rotary is None else [(parts.rotary, "rotary embeddings", lacking)]
    lost = [f"no {what} `{name}`" for name, what, spare in wanted if not _there(base, name, spare)]
    lost += [] if chain_of(model, parts.head) is not None else [f"no output head `{'.'.join(parts.head)}`"]
    if not lost:
        return base
    said = lost[0] if len(lost) == 1 else f"{', '.join(lost[:-1])} and {lost[-1]}"
    return f"it has {said} ({_SUPPORTED})"


def _there(owner: nn.Module, name: str, spare: bool) -> bool:
    """Tell whether `owner` has a part `name`, which may be None where it is one to `spare`."""
    return spare or getattr(owner, name, None) is not None


def chain_of(owner: Any, path: tuple[str, ...]) -> Any:
    """Return what a chain of attributes leads to; None where it breaks off."""
    for name in path:
        owner = getattr(owner, name, None)
    return owner


def one_after_another(base: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """Return the modules `names` of `base` as one, those that are None left out."""
    found = [part for part in (getattr(base, name) for name in names) if part is not None]
    return found[0] if len(found) == 1 else nn.Sequential(*found)
