"""Draft views: the target's own layers with attention or MLP left out, sharing every parameter.

A view is a list of shallow copies of layer objects, so the target is never changed and nothing has to be restored,
whatever happens while a view drafts. A layer that loses both sublayers is None: `Target.run` passes over it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ssd_infer.engine.families.stand_ins import NO_ATTENTION, NO_MIXER, NO_MLP, NO_NORM
from ssd_infer.engine.model_view import once
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.errors import one_line

_ROUNDING = 0.05
"""Share of what a layer changes that precision may account for."""
View = Sequence[nn.Module | None]

_ARRANGEMENTS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"attention": ("input_layernorm",), "mlp": ("post_attention_layernorm",)},
    {"attention": ("input_layernorm",), "mlp": ("pre_feedforward_layernorm",)},
    {"attention": ("post_attention_layernorm",), "mlp": ("post_feedforward_layernorm",)},
    {
        "attention": ("input_layernorm", "post_attention_layernorm"),
        "mlp": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
)
"""Norms before each sublayer, or after it, or both."""


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Which sublayers a draft leaves out: layer numbers whose attention, and whose MLP, is skipped."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def of(cls, attention: Iterable[int], mlp: Iterable[int]) -> SkipSet:
        """Build a set from layer numbers."""
        return cls(frozenset(attention), frozenset(mlp))

    @classmethod
    def from_bits(cls, bits: Sequence[bool]) -> SkipSet:
        """Read 2L bits, attention before MLP of each layer, True meaning skipped."""
        chosen = [index for index, skipped in enumerate(bits) if skipped]
        return cls.of((i // 2 for i in chosen if i % 2 == 0), (i // 2 for i in chosen if i % 2 == 1))

    def bits(self, num_layers: int) -> list[bool]:
        """Return the 2L bits `from_bits` reads."""
        return [layer in skipped for layer in range(num_layers) for skipped in (self.attention, self.mlp)]

    def first(self, num_layers: int) -> int:
        """Return the first layer with a skipped sublayer, counted as L-1 at most: verification needs a layer to run."""
        return min((*self.attention, *self.mlp, num_layers - 1))

    def __len__(self) -> int:
        """Count skipped sublayers."""
        return len(self.attention) + len(self.mlp)


def skip_view(target: Target, skips: SkipSet) -> list[nn.Module | None]:
    """Return the target's layers without the sublayers in `skips`; untouched layers are the target's own objects."""
    return [
        _without(target, layer, index in skips.attention, index in skips.mlp)
        for index, layer in enumerate(target.layers)
    ]


def _without(target: Target, layer: nn.Module, attention: bool, mlp: bool) -> nn.Module | None:
    """Return `layer` without its attention or MLP: itself, a shallow copy, or None when nothing is left."""
    if attention and mlp:
        return None
    if not (attention or mlp):
        return layer
    return without_parts(target, layer, ["attention"] if attention else ["mlp"])


def without_parts(target: Target, layer: nn.Module, parts: Iterable[str]) -> nn.Module:
    """Return a shallow copy of `layer` whose `parts` ("attention", "mlp"), and what serves only them, do nothing."""
    view = copy.copy(layer)
    view._modules = dict(layer._modules)
    told = target.family.sublayers
    serving = _serving(layer) if told.serving is None else told.serving
    for part in parts:
        view._modules |= dict.fromkeys(serving.get(part, ()), NO_NORM)
        name = _name(target, layer, part)
        usual = {told.mlp: NO_MLP, told.mixer: NO_MIXER}.get(name, NO_ATTENTION)
        other = None if told.stand_in is None else told.stand_in(layer, part)
        view._modules[name] = usual if other is None else other
    return view


def _name(target: Target, layer: nn.Module, part: str) -> str:
    """Return what `layer` of `target` calls its MLP, or its attention, or what takes attention's place in it."""
    told = target.family.sublayers
    if part == "mlp":
        return told.mlp
    lacks = told.mixer is not None and layer._modules.get(told.attention) is None
    return told.mixer if lacks and told.mixer is not None else told.attention


def _serving(layer: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Name the norms that serve one sublayer alone; none where the arrangement is not known."""
    names = {name for name, part in layer._modules.items() if name.endswith("layernorm") and part is not None}
    known = (one for one in _ARRANGEMENTS if names == {*one["attention"], *one["mlp"]})
    return next(known, {})


@once
@torch.inference_mode()
def side_by_side(target: Target) -> str | None:
    """Say that layers hand one state to both sublayers; None where the MLP is given what attention has changed.

    One layer is run as it is, and in two steps that keep one sublayer each.
    """
    cache, window = target.new_cache(1, 2), Window(target.geometry(2), [0], 2)
    ids = torch.arange(2, device=target.device).unsqueeze(0) % target.vocab_size
    start = target.embed_at(ids, window, cache)
    whole = target.run(start, window, cache, 0, 1)
    step = start
    for left_out in ("mlp", "attention"):
        step = target.run(step, window, cache, 0, 1, [without_parts(target, target.layers[0], [left_out])])
    apart = float((whole - step).abs().max()) / (float((whole - start).abs().max()) + 1e-6)
    return "its layers run attention and MLP side by side" if apart > _ROUNDING else None


@once
@torch.inference_mode()
def unsupported_reason(target: Target) -> str | None:
    """Return None when sublayers of `target` can be left out exactly, otherwise the reason in one sentence.

    Look for both sublayers, then check that a layer without them passes its input on unchanged.
    """
    if target.fixed is not None:
        return target.fixed
    for layer in target.layers:
        attention, mlp = _name(target, layer, "attention"), _name(target, layer, "mlp")
        if not {attention, mlp} <= set(layer._modules):
            return f"{type(layer).__name__} has no `{attention}` and `{mlp}` that could be skipped one by one"
        if "forward" in vars(layer):
            return (
                "its layers' forward was replaced by a wrapper, which would run the sublayers to be skipped"
            )
    cache, window = target.new_cache(1, 1), Window(target.geometry(1), [0], 1)
    ids = torch.zeros((1, 1), dtype=torch.long, device=target.device)
    hidden = target.embed_at(ids, window, cache)
    hollow = [without_parts(target, layer, ["attention", "mlp"]) for layer in target.layers]
    try:
        left = target.run(hidden, window, cache, layers=hollow)
    except Exception as error:  # noqa: BLE001  what a layer asks of its sublayers is its own affair
        return (
            f"a {type(target.layers[0]).__name__} does more with its sublayers than add them up, and cannot be run "
            f"without them ({one_line(error)})"
        )
    if not torch.equal(left, hidden):
        return f"a {type(target.layers[0]).__name__} without attention and MLP still changes its input"
    return None
