"""Load a checkpoint directory or hub name, with one clear error for what can be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ssd_infer.checkpoint.kinds import KINDS, Kind, kind_at, kind_of, register_classes
from ssd_infer.errors import CheckpointError

_FILES = {
    "AutoTokenizer": ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    "AutoProcessor": ("processor_config.json", "preprocessor_config.json"),
}
"""What lies beside the weights of a checkpoint that has the thing this class loads."""


@dataclass(slots=True)
class Loaded:
    """A model with the tokenizer saved beside it, and where both came from."""

    model: nn.Module
    tokenizer: Any
    path: str
    kind: Kind = "causal"
    processor: Any = None
    """The processor of a checkpoint that takes more than text; its tokenizer is `tokenizer`."""


def load(
    path: str | Path | nn.Module,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    *,
    trust_remote_code: bool = False,
) -> Loaded:
    """Load model and tokenizer; `dtype=None` keeps the checkpoint's, `device=None` takes CUDA when there is one.

    An already loaded transformers model is wrapped as it is. Raises CheckpointError when the directory is missing,
    holds no model, or its weights are damaged.
    """
    if isinstance(path, nn.Module):
        config: Any = path.config
        return Loaded(path, None, str(getattr(config, "_name_or_path", "")), kind_of(config))
    where = str(path)
    _check_directory(where)
    kind = _kind(where)
    register_classes(kind)
    model = _load_model(where, kind, _dtype(dtype), trust_remote_code)
    chosen = (
        torch.device(device)
        if device not in (None, "auto")
        else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    )
    beside = load_beside(where, KINDS[kind].auto_processor, trust_remote_code)
    processor = beside if KINDS[kind].auto_processor == "AutoProcessor" else None
    tokenizer = beside if processor is None else getattr(processor, "tokenizer", None)
    return Loaded(model.to(chosen).eval(), tokenizer, where, kind, processor)


def _kind(where: str) -> Kind:
    """Return the kind of a local directory or, from its configuration file alone, of a hub name."""
    if _looks_local(where):
        return kind_at(where)
    from transformers import PreTrainedConfig

    try:
        found: Any = PreTrainedConfig.get_config_dict(where)
    except (OSError, ValueError) as error:
        raise _does_not_load("", where, error) from error
    return kind_of(found[0])


def _does_not_load(what: str, where: str, error: Exception) -> CheckpointError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CheckpointError(f"checkpoint: {what}{where!r} does not load ({first})")


def _dtype(dtype: str | torch.dtype | None) -> str | torch.dtype:
    if dtype is None or dtype == "auto":
        return "auto"
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _looks_local(where: str) -> bool:
    return Path(where).exists() or where.startswith((".", "/", "~")) or where.count("/") > 1


def _check_directory(where: str) -> None:
    if not _looks_local(where):
        return
    path = Path(where)
    if not path.is_dir():
        raise CheckpointError(
            f"checkpoint: no directory {where!r}; give a directory that holds config.json and model.safetensors"
        )
    if not (path / "config.json").is_file():
        inside = (
            sorted(item.name for item in path.glob("checkpoints/*"))
            or sorted(item.name for item in path.iterdir())[:5]
        )
        found = ", ".join(inside) or "nothing"
        raise CheckpointError(
            f"checkpoint: {where!r} holds no config.json, so it is no checkpoint; it holds {found}"
        )


def _load_model(where: str, kind: Kind, dtype: str | torch.dtype, trust_remote_code: bool) -> nn.Module:
    import transformers
    from safetensors import SafetensorError

    auto: Any = getattr(transformers, KINDS[kind].auto_model)
    try:
        loaded: Any = auto.from_pretrained(
            where, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True
        )
    except SafetensorError as error:
        raise CheckpointError(
            f"checkpoint: the weights in {where!r} are damaged ({error}); copy or train them again"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _does_not_load("", where, error) from error
    model, info = loaded
    check_loading_info(info, where)
    return model  # type: ignore[no-any-return]


def check_loading_info(info: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError unless every weight of the model came from the checkpoint, and all of those were used.

    transformers fills a missing weight at random with no more than a printed table; a proof about random layers
    would be worthless.
    """
    found = []
    for key, what in (
        ("missing_keys", "missing"),
        ("mismatched_keys", "of another shape"),
        ("unexpected_keys", "unknown to the model"),
    ):
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in info.get(key) or ())
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            found.append(f"{what}: {', '.join(names[:3])}{more}")
    if found:
        raise CheckpointError(
            f"checkpoint: the weights in {where!r} do not fit its config.json ({'; '.join(found)}); "
            "config and weights must come from the same save"
        )


def load_beside(where: str, auto_class: str, trust_remote_code: bool) -> Any:
    """Return the tokenizer or processor saved with the checkpoint, or None when there is none (ids still work)."""
    import transformers

    path = Path(where)
    if path.is_dir() and not any((path / name).exists() for name in _FILES[auto_class]):
        return None
    auto: Any = getattr(transformers, auto_class)
    try:
        return auto.from_pretrained(where, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise _does_not_load(f"the {auto_class.removeprefix('Auto').lower()} in ", where, error) from error
