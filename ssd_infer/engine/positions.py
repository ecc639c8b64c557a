"""Where a model's behaviour changes with positions, and whether a position means the same in every pass."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.window import Rotary

_VARYING = ("dynamic", "longrope", "su")
"""Rotary types whose frequencies follow the longest position of the pass they are computed for."""
_SWITCH = re.compile(r"max_position_embeddings|original_max|max_seq|seq_length|context_len|floor_scale|n_ctx")
_EDGE = re.compile(r"window|chunk|block_size|topk_blocks|index_topk")
_NEAR = (0, 1, 2, 3)


def text_config(model: nn.Module) -> Any:
    """Return the configuration of a model's text part."""
    config: Any = getattr(model, "config", None)
    own = getattr(config, "get_text_config", None)
    return config if own is None else own()


def varying_rope(config: Any, rotary: nn.Module | None = None) -> str | None:
    """Return why rotary embeddings of this type mean something else in every pass, or None where they do not.

    The tables of `dynamic` and `longrope` scaling follow the longest position of a pass: plain decoding encodes each
    token with the tables of its own step, a verified block with those of its last token.
    """
    kinds = {*_rope_kinds(config), *_module_kinds(rotary)}
    found = sorted(kind for kind in kinds if kind in _VARYING or "dynamic" in kind)
    if not found:
        return None
    return (
        f"its rotary embeddings of type {found[0]!r} depend on the longest position of a pass, so that a block of "
        "tokens is encoded otherwise than one token after another"
    )


def rope_kind(config: Any, rotary: nn.Module, layer_type: str | None) -> str:
    """Return the rotary type of layers of `layer_type`, or of all layers (None)."""
    kinds: Any = getattr(rotary, "rope_type", None)
    found = kinds.get(layer_type) if isinstance(kinds, Mapping) else kinds
    if isinstance(found, str):
        return found
    return next(iter(sorted(_rope_kinds(config))), "default")


def switch_of(config: Any, layer_type: str | None) -> int | None:
    """Return the position from which layers of `layer_type` have another table, where a configuration says it."""
    ropes = list(_ropes(config))
    own = [rope[layer_type] for rope in ropes if layer_type in rope] if layer_type is not None else []
    name = "original_max_position_embeddings"
    found = [rope[name] for rope in own or ropes if rope and isinstance(rope.get(name), int)]
    return int(found[0]) if found else None


def _rope_kinds(config: Any) -> set[str]:
    return {
        str(rope.get("rope_type", rope.get("type", "default")))
        for rope in _ropes(config)
        if isinstance(rope.get("rope_type", rope.get("type", "default")), str)
    }


def _module_kinds(rotary: nn.Module | None) -> set[str]:
    kinds = getattr(rotary, "rope_type", None)
    found = kinds.values() if isinstance(kinds, Mapping) else [kinds]
    return {kind for kind in found if isinstance(kind, str)}


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary parameters of a configuration, those of each layer type where they are nested."""
    for name in ("rope_parameters", "rope_scaling"):
        yield from _nested(getattr(config, name, None))


def _nested(rope: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(rope, Mapping):
        yield rope
        for part in rope.values():
            yield from _nested(part)


def switches(config: Any) -> list[int]:
    """Return, ascending, the positions at which a model of this configuration may change how it encodes them."""
    return _numbers(config, _SWITCH)


def edges(config: Any) -> list[int]:
    """Return, ascending, the numbers of tokens after which a model of this configuration may attend otherwise."""
    return _numbers(config, _EDGE)


def _numbers(config: Any, named: re.Pattern[str]) -> list[int]:
    """Return the positive integers that a configuration or its rotary parameters keep under names like `named`."""
    places = [vars(config) if hasattr(config, "__dict__") else {}, *_ropes(config)]
    found = {
        int(value)
        for place in places
        for name, value in place.items()
        if named.search(name) and isinstance(value, int) and not isinstance(value, bool) and value > 1
    }
    return sorted(found)


def table_shift(rotary: Callable[[Tensor], Rotary], places: list[int], device: torch.device) -> float:
    """Return by how much the rotary table of a position differs with the others it is computed with; 0 if never.

    Tables are computed of positions around all `places` together and of each alone, the first ones again at the end: no
    token is run, however far the places are.
    """
    groups = [
        _NEAR,
        *((place - 1, place, place + 1) for place in places),
        (4 * max(places, default=1),),
        _NEAR,
    ]
    apart = [_rotary_table(rotary, group, device) for group in groups]
    together = _rotary_table(rotary, [at for group in groups for at in group], device)
    return _difference(torch.cat(apart), together)


def _rotary_table(rotary: Callable[[Tensor], Rotary], positions: Any, device: torch.device) -> Tensor:
    """Return one row of numbers `(T, ·)` a position."""
    found = rotary(torch.tensor([list(positions)], dtype=torch.long, device=device))
    parts = [found] if isinstance(found, Tensor) else list(found)
    real = [torch.view_as_real(part).flatten(-2) if part.is_complex() else part for part in parts]
    return torch.cat([part[0] for part in real], dim=-1)


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


def loose_copy(rotary: nn.Module) -> nn.Module:
    """Return a copy of a rotary module that may be asked for any position: some remember the longest one asked for."""
    config = getattr(rotary, "config", None)
    return copy.deepcopy(rotary, {id(config): config})


def beyond_positions(model: nn.Module, longest: int) -> str | None:
    """Say that a text of `longest` tokens goes past the positions `model` was made for; None where it does not."""
    limit = getattr(text_config(model), "max_position_embeddings", None)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit < longest:
        return None
    return (
        f"texts of up to {longest} tokens go past the {limit} positions this checkpoint is made for "
        "(max_position_embeddings): what it writes there, by any way of decoding, may be poor"
    )
