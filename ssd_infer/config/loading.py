"""Settings of how a checkpoint is loaded, and the rules they keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ssd_infer.checkpoint.draft_spec import has_draft
from ssd_infer.checkpoint.options import LoadOptions, is_hub_name, option_problems, revision_problems
from ssd_infer.config.checks import Checks


@dataclass(slots=True)
class QuantisationSettings:
    """Fields of transformers' quantisation configurations; what is null is left to the method."""

    quant_method: str | None = None
    """torchao, bitsandbytes_8bit, bitsandbytes_4bit, hqq, quanto or another of transformers' methods."""
    quant_type: str | None = None
    """torchao: the class of its configuration, such as Int8WeightOnlyConfig."""
    quant_type_kwargs: Any = None
    """torchao: arguments of that class."""
    load_in_8bit: bool | None = None
    """bitsandbytes: 8 bits."""
    load_in_4bit: bool | None = None
    """bitsandbytes: 4 bits."""
    bnb_4bit_quant_type: str | None = None
    """bitsandbytes: fp4 or nf4."""
    bnb_4bit_use_double_quant: bool | None = None
    """bitsandbytes: quantise the constants as well."""
    weights: str | None = None
    """quanto: float8, int8, int4 or int2."""
    nbits: int | None = None
    """hqq: bits of a weight."""
    bits: int | None = None
    """gptq, awq and others: bits of a weight."""
    group_size: int | None = None
    """Weights that share a scale."""


def options_of(settings: Any) -> LoadOptions:
    """Return how `settings`, which have a field for each of the options, load their checkpoint.

    They may come from JSON, where a group of settings is a mapping and numbers as keys are text.
    """
    given = {item.name: getattr(settings, item.name) or None for item in fields(LoadOptions)}
    quantised: Any = given["quantization_config"]
    found = asdict(quantised) if isinstance(quantised, QuantisationSettings) else dict(quantised or {})
    given["quantization_config"] = {key: value for key, value in found.items() if value is not None}
    memory = dict(given["max_memory"] or {})
    given["max_memory"] = {int(key) if str(key).isdecimal() else key: memory[key] for key in memory}
    return LoadOptions(**{key: value or None for key, value in given.items()})


def check_checkpoint(checkpoint: str, options: LoadOptions, near: str, checks: Checks) -> None:
    """Check that there is something to load: a directory, or a name on the hub with its revision.

    `near` is said where there is no directory.
    """
    path = Path(checkpoint).expanduser()
    if options.revision is not None and not path.exists():
        rule = "must be a name on the hub, owner/name, where a revision is given"
        checks.require(is_hub_name(checkpoint), "checkpoint", rule, checkpoint, "leave revision out")
        return
    checks.problems += revision_problems(options)
    if options.gguf_file is not None:
        rule = "must be a file inside the checkpoint's directory"
        checks.require((path / options.gguf_file).is_file(), "gguf_file", rule, options.gguf_file)
        return
    rule = "must be a directory with a config.json"
    there = (path / "config.json").is_file() or has_draft(path)
    checks.require(there, "checkpoint", rule, checkpoint, near)


def check_loading(options: LoadOptions, device: str, expert_budget: float, checks: Checks) -> None:
    """Check that options go together, and with experts that stay on disk."""
    checks.problems += option_problems(options, device)
    given = options.given()
    rule = "cannot be given where experts stay on disk"
    for key in sorted(given.keys() - options.hub().keys()) if expert_budget else ():
        checks.fail(key, rule, given[key], "leave out expert_budget or this")


def what_is_there(path: Path) -> str:
    """Say how a directory without a config.json can be loaded after all."""
    if (path / "adapter_config.json").is_file():
        return f"that is an adapter: give its model as the checkpoint, and adapter={path}"
    ggufs = sorted(path.glob("*.gguf"))
    return f"try gguf_file={ggufs[0].name}" if ggufs else "there is no config.json in it"
