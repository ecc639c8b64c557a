"""Load a checkpoint directory or hub name, with one clear error for what can be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ssd_infer.checkpoint.adapters import add_adapter, adds_prompts, inner_model
from ssd_infer.checkpoint.draft_base import check_base, find_base
from ssd_infer.checkpoint.draft_files import carry, read_spec
from ssd_infer.checkpoint.draft_spec import is_draft_alone
from ssd_infer.checkpoint.kinds import KINDS, Kind, kind_at, kind_of, register_classes
from ssd_infer.checkpoint.options import ROW_MASKED, LoadOptions, option_problems, revision_problems
from ssd_infer.checkpoint.placement import read_device, read_dtype
from ssd_infer.checkpoint.quantised import quantisation
from ssd_infer.errors import CheckpointError, ConfigError, Problem

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
    notes: tuple[str, ...] = ()
    """What was loaded otherwise than asked for."""


def load(
    path: str | Path | nn.Module,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    *,
    adapter: str | Path | None = None,
    revision: str | None = None,
    device_map: Any = None,
    max_memory: Any = None,
    offload_folder: str | Path | None = None,
    attn_implementation: str | None = None,
    quantization_config: Any = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """Load model and tokenizer; `dtype=None` keeps the checkpoint's, `device=None` takes CUDA when there is one.

    An already loaded transformers or PEFT model is wrapped as it is. The other arguments are `from_pretrained`'s own
    (`quantization_config` also as a dictionary of its fields), and `adapter`, a LoRA adapter that is kept beside the
    weights (`ssd_infer.checkpoint.options`). Attention backends that take no mask for each row are replaced by sdpa,
    which `notes` of the result says.

    Raises CheckpointError when the directory is missing, holds no model, its weights are damaged or a package that
    reads them is missing, ConfigError for arguments that contradict each other.
    """
    places = (adapter, offload_folder, cache_dir)
    texts = [None if place is None else str(place) for place in places]
    options = LoadOptions(
        adapter=texts[0],
        revision=revision,
        device_map=device_map,
        max_memory=max_memory,
        offload_folder=texts[1],
        attn_implementation=attn_implementation,
        quantization_config=quantization_config,
        cache_dir=texts[2],
        token=token,
        gguf_file=gguf_file,
    )
    if isinstance(path, nn.Module):
        return _wrapped(path, options, dtype, device)
    place: Any = path
    if not isinstance(place, str | Path) or not str(place):
        rule, remedy = "must be a directory, a name on the hub or a model", "a loaded one is its `model`"
        raise ConfigError([Problem("checkpoint", rule, type(place).__name__ if place else place, remedy)])
    return load_with(str(place), options, dtype, device, trust_remote_code=trust_remote_code)


def load_with(
    where: str,
    options: LoadOptions,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    *,
    trust_remote_code: bool = False,
) -> Loaded:
    """Load the checkpoint at `where`, a directory or a name on the hub, as `load` does."""
    problems = option_problems(options, "auto" if device is None else str(device))
    precision, placed = read_dtype(dtype, problems), read_device(device, problems)
    where = str(Path(where).expanduser()) if where.startswith("~") else where
    if Path(where).is_dir():
        problems += revision_problems(options)
    if problems:
        raise ConfigError(problems)
    if is_draft_alone(Path(where)):
        return _with_draft(Path(where), options, dtype, device, trust_remote_code=trust_remote_code)
    _check_directory(where, options.gguf_file)
    kind = "causal" if options.gguf_file else _kind(where, options.hub())
    _check_kind(kind, options)
    register_classes(kind)
    notes, chosen = _row_masked(options)
    model = _load_model(where, kind, precision, chosen, trust_remote_code)
    if options.adapter is not None:
        beside_weights = options.hub()
        beside_weights.pop(
            "revision", None
        )  # the model's own; an adapter's repository knows none of its commits
        add_adapter(model, options.adapter, beside_weights)
    if options.device_map is None:
        model = _moved(model, placed)
    more = options.hub() | ({"gguf_file": options.gguf_file} if options.gguf_file else {})
    beside = load_beside(where, KINDS[kind].auto_processor, trust_remote_code, more)
    processor = beside if KINDS[kind].auto_processor == "AutoProcessor" else None
    tokenizer = beside if processor is None else getattr(processor, "tokenizer", None)
    return Loaded(model.eval(), tokenizer, where, kind, processor, notes)


def _with_draft(
    folder: Path, options: LoadOptions, dtype: Any, device: Any, *, trust_remote_code: bool
) -> Loaded:
    """Load the model that the draft module in `folder` was trained beside, and let it draft with that."""
    spec = read_spec(folder)
    base = find_base(folder, spec)
    loaded = load_with(base, options, dtype, device, trust_remote_code=trust_remote_code)
    if not (spec.base.files and Path(base).is_dir()):
        check_base(folder, spec, loaded.model)
    carry(loaded.model, folder)
    return replace(loaded, path=str(folder), notes=(*loaded.notes, f"the model itself is {base}"))


def _wrapped(model: nn.Module, options: LoadOptions, dtype: Any, device: Any) -> Loaded:
    """Wrap a model that is loaded already; raises ConfigError for options that come too late."""
    rule, remedy = "belongs to a checkpoint that is still to be loaded", "pass the checkpoint's directory"
    placed = {name: value for name, value in (("dtype", dtype), ("device", device)) if value is not None}
    problems = [Problem(name, rule, value, remedy) for name, value in (placed | options.given()).items()]
    if adds_prompts(model):
        rule = "must not be a PEFT model that learns prompts: they are in none of its layers"
        problems.append(Problem("model", rule, type(model).__name__, "pass one whose adapter is in layers"))
    if problems:
        raise ConfigError(problems)
    inside = inner_model(model)
    config: Any = inside.config
    return Loaded(inside, None, str(getattr(config, "_name_or_path", "")), kind_of(config))


def _row_masked(options: LoadOptions) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return what `from_pretrained` takes, with an attention backend that takes masks for each row, and what to say."""
    given, wanted = options.model(), options.attn_implementation
    if "quantization_config" in given:
        given["quantization_config"] = quantisation(given["quantization_config"])
    if wanted is None or wanted in ROW_MASKED:
        return (), given
    del given["attn_implementation"]
    said = f"attn_implementation={wanted!r} takes no mask for each row, which drafted blocks need: sdpa took its place"
    return (said,), given


def _check_kind(kind: Kind, options: LoadOptions) -> None:
    """Raise ConfigError for options that only causal language models are loaded with."""
    alien = options.given().keys() - options.hub().keys()
    if kind != "causal" and alien:
        rule = f"is for causal language models, and this is a {kind} checkpoint"
        found = options.given()
        raise ConfigError([Problem(name, rule, found[name], "leave it out") for name in sorted(alien)])


def _moved(model: Any, chosen: torch.device) -> Any:
    """Return `model` on the device asked for, where it is not there already: quantised weights may not bear a move."""
    places = {weight.device for weight in model.parameters()}
    there = all(
        place.type == chosen.type and chosen.index in (None, place.index or chosen.index) for place in places
    )
    return model if there else model.to(chosen)


def _kind(where: str, hub: Mapping[str, Any]) -> Kind:
    """Return the kind of a local directory or, from its configuration file alone, of a hub name."""
    if _looks_local(where):
        return kind_at(where)
    from transformers import PreTrainedConfig

    try:
        found: Any = PreTrainedConfig.get_config_dict(where, **hub)
    except (OSError, ValueError) as error:
        raise _does_not_load("", where, error) from error
    return kind_of(found[0])


def _does_not_load(what: str, where: str, error: Exception) -> CheckpointError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CheckpointError(f"checkpoint: {what}{where!r} does not load ({first})")


def _looks_local(where: str) -> bool:
    return Path(where).exists() or where.startswith((".", "/", "~")) or where.count("/") > 1


def _check_directory(where: str, gguf_file: str | None = None) -> None:
    if not _looks_local(where):
        return
    path = Path(where)
    if not path.is_dir():
        raise CheckpointError(
            f"checkpoint: no directory {where!r}; give a directory that holds config.json and model.safetensors"
        )
    inside = (
        sorted(item.name for item in path.glob("checkpoints/*"))
        or sorted(item.name for item in path.iterdir())[:5]
    )
    found = ", ".join(inside) or "nothing"
    if gguf_file and not (path / gguf_file).is_file():
        raise CheckpointError(f"gguf_file: {where!r} holds no {gguf_file!r}; it holds {found}")
    if gguf_file or (path / "config.json").is_file():
        return
    if (path / "adapter_config.json").is_file():
        raise CheckpointError(
            f"checkpoint: {where!r} holds an adapter and not the model it belongs to; give the model as the "
            f"checkpoint and this as adapter={where}"
        )
    ggufs = [item.name for item in path.glob("*.gguf")]
    remedy = f"; add gguf_file={ggufs[0]}" if ggufs else ""
    raise CheckpointError(
        f"checkpoint: {where!r} holds no config.json, so it is no checkpoint; it holds {found}{remedy}"
    )


def _load_model(
    where: str, kind: Kind, dtype: str | torch.dtype, options: Mapping[str, Any], trust_remote_code: bool
) -> nn.Module:
    import transformers
    from safetensors import SafetensorError

    auto: Any = getattr(transformers, KINDS[kind].auto_model)
    try:
        loaded: Any = auto.from_pretrained(
            where, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True, **options
        )
    except SafetensorError as error:
        raise CheckpointError(
            f"checkpoint: the weights in {where!r} are damaged ({error}); copy or train them again"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, *_OF_OPTIONS) as error:
        if isinstance(error, _OF_OPTIONS) and not options:
            raise
        raise _does_not_load("", where, error) from error
    model, info = loaded
    check_loading_info(info, where)
    return model  # type: ignore[no-any-return]


_OF_OPTIONS = (TypeError, AttributeError, AssertionError)
"""What transformers and the libraries that quantise for it run into where an option is none."""


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


def load_beside(
    where: str, auto_class: str, trust_remote_code: bool, options: Mapping[str, Any] | None = None
) -> Any:
    """Return the tokenizer or processor saved with the checkpoint, or None when there is none (ids still work)."""
    import transformers

    path, more = Path(where), dict(options or {})
    if (
        path.is_dir()
        and "gguf_file" not in more
        and not any((path / name).exists() for name in _FILES[auto_class])
    ):
        return None
    auto: Any = getattr(transformers, auto_class)
    try:
        return auto.from_pretrained(where, trust_remote_code=trust_remote_code, **more)
    except (OSError, ValueError, KeyError) as error:
        raise _does_not_load(f"the {auto_class.removeprefix('Auto').lower()} in ", where, error) from error
