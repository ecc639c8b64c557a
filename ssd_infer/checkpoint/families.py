"""Every family of models by `config.model_type`: this package's own, those installed beside it, and registered ones.

A family says how models of some types are taken apart. Names are known without importing torch; what a family says is
imported when a model of it arrives. A type that no family claims is tried as it is (`engine.families.base`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from ssd_infer.entries import check_same_name, imported, loaded, named_once
from ssd_infer.errors import ConfigError, Problem

FAMILY_POINTS = "ssd_infer.families"
"""Group of entry points whose values are families, one a name."""
FAMILY_KINDS = ("causal", "diffusion", "speech")
_PACKAGE = "ssd_infer.engine.families"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that are taken apart alike; subclasses say how, one for each kind of model."""

    name: str
    model_types: tuple[str, ...]
    """Values of `config.model_type`."""
    kind: str = "causal"
    """One of `FAMILY_KINDS`."""


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """A family of this package, not imported yet: `place` is `module:NAME` of its `Family`."""

    name: str
    model_types: tuple[str, ...]
    place: str
    kind: str = "causal"


def _entry(name: str, place: str, *model_types: str) -> FamilyEntry:
    return FamilyEntry(name, model_types or (name,), f"{_PACKAGE}.{place}")


FAMILIES_OF_OURS: tuple[FamilyEntry, ...] = (
    _entry("phi", "names:PHI", "phi", "persimmon"),
    _entry("phi3", "names:PHI3", "phi3", "phimoe"),
    _entry("gpt_neox", "names:GPT_NEOX"),
    _entry("gptj", "names:GPT_J", "gptj", "codegen"),
    _entry("gpt_oss", "names:GPT_OSS"),
    _entry("llama4_text", "names:LLAMA4"),
    _entry("granite", "scales:GRANITE", "granite", "granite_swa"),
    _entry("granitemoe", "scales:GRANITE_MOE", "granitemoe", "granitemoe_swa", "granitemoeshared"),
    _entry("cohere", "scales:COHERE", "cohere", "cohere2", "cohere2_moe"),
    _entry("gemma2", "scales:GEMMA2", "gemma2", "vaultgemma"),
    _entry("gemma3_text", "scales:GEMMA3_TEXT"),
    _entry("gpt2", "added_positions:GPT2", "gpt2", "gpt_bigcode"),
    _entry("opt", "added_positions:OPT"),
    _entry("bloom", "alibi:BLOOM"),
    _entry("falcon", "alibi:FALCON"),
    _entry("gemma4_text", "shared_keys:GEMMA4", "gemma4_text", "gemma4_unified_text"),
    _entry("gemma3", "text_part:GEMMA3"),
    _entry("mistral3", "text_part:MISTRAL3"),
    _entry("gemma3n", "refused:GEMMA3N", "gemma3n", "gemma3n_text"),
    _entry("qwen3_next", "hybrid:QWEN3_NEXT", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    _entry("lfm2", "hybrid:LFM2", "lfm2", "lfm2_moe"),
    _entry("granitemoehybrid", "hybrid:GRANITE_HYBRID"),
    _entry("bamba", "hybrid:BAMBA"),
    _entry("falcon_h1", "hybrid:FALCON_H1"),
    _entry("nemotron_h", "hybrid:NEMOTRON_H"),
    _entry("mamba2", "hybrid:MAMBA2"),
    _entry(
        "recurrent",
        "refused:RECURRENT",
        *("falcon_mamba", "jamba", "mamba"),
        *("recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"),
    ),
)
"""Families of this package, in the order of the documentation."""

_families: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Make `family` known in this process, for every model whose `config.model_type` it names.

    Raises ConfigError for something else than a family, and where its name or one of its types is taken.
    """
    _check_family(family)
    others = {name: types for name, types in _claims().items() if _families.get(name) is not family}
    if family.name in others:
        raise ConfigError(
            [Problem("family.name", "is the name of another family", family.name, "choose another")]
        )
    taken = [
        model_type for types in others.values() for model_type in types if model_type in family.model_types
    ]
    if taken:
        raise ConfigError([Problem("family.model_types", "belongs to another family", taken[0])])
    _families[family.name] = family
    return family


def unregister_family(name: str) -> None:
    """Forget what `register_family` made known under `name`; does nothing where it made nothing known."""
    _families.pop(name, None)


def family_of(model_type: str | None, kind: str = "causal") -> Family | None:
    """Return the family that models of `model_type` belong to; None where no family of `kind` claims it.

    Raises ConfigError where a package installed beside this one offers a family that cannot be imported.
    """
    for entry in FAMILIES_OF_OURS:
        if entry.kind == kind and model_type in entry.model_types:
            return _imported(entry)
    known = (*_families.values(), *(_loaded_family(point) for point in _family_points()))
    return next((found for found in known if found.kind == kind and model_type in found.model_types), None)


def family_names(kind: str = "causal") -> list[str]:
    """Return the names of all families of `kind`, in the order of the documentation."""
    own = [entry.name for entry in FAMILIES_OF_OURS if entry.kind == kind]
    beside = [_loaded_family(point) for point in _family_points()]
    return [*own, *(found.name for found in (*beside, *_families.values()) if found.kind == kind)]


def _claims() -> dict[str, tuple[str, ...]]:
    """Return name → model types of all families."""
    own = {entry.name: entry.model_types for entry in FAMILIES_OF_OURS}
    beside = {point.name: _loaded_family(point).model_types for point in _family_points()}
    return own | beside | {name: found.model_types for name, found in _families.items()}


def _imported(entry: FamilyEntry) -> Family:
    """Return the family behind `entry`; in a file made of all these modules it stands beside this function."""
    found = globals().get(entry.place.partition(":")[2])
    return cast(Family, imported(entry.place) if found is None else found)


@cache
def _family_points() -> tuple[EntryPoint, ...]:
    own = {entry.name for entry in FAMILIES_OF_OURS}
    return tuple(named_once((point for point in _named_points() if point.name not in own), "family").values())


def _named_points() -> Iterator[EntryPoint]:
    yield from entry_points(group=FAMILY_POINTS)


@cache
def _loaded_family(point: EntryPoint) -> Family:
    """Import the family behind an entry point; ConfigError when that fails or is no family of that name."""
    family = loaded(point, "family")
    _check_family(family)
    check_same_name(point, "family", "family", family.name)
    return cast(Family, family)


def _check_family(family: Any) -> None:
    """Raise ConfigError unless `family` is a family of a known kind that claims model types."""
    if not isinstance(family, Family):
        raise ConfigError([Problem("family", "must be a Family, such as a CausalFamily", family)])
    if family.kind not in FAMILY_KINDS:
        rule = f"must be one of {', '.join(FAMILY_KINDS)}"
        raise ConfigError([Problem("family.kind", rule, family.kind)])
    if not family.model_types:
        rule = "must name at least one model_type"
        raise ConfigError([Problem("family.model_types", rule, family.model_types)])
