"""Draft views: the target's own layers with attention or MLP left out, sharing every parameter.

A view is a list of shallow copies of layer objects, so the target is never changed and nothing has to be restored,
whatever happens while a view drafts. A layer that loses both sublayers is None: `Target.run` passes over it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ssd_infer.engine.model_view import once
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.errors import one_line

View = Sequence[nn.Module | None]

_PRE_NORM = {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}
_POST_NORM = {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}


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


class _Nothing(nn.Module):
    """Stand in for a sublayer and contribute nothing to the residual stream."""

    zeros: ClassVar[dict[tuple[torch.dtype, torch.device], Tensor]] = {}

    def _zero(self, like: Tensor) -> Tensor:
        key = (like.dtype, like.device)
        found = self.zeros.get(key)
        if found is None:
            found = self.zeros[key] = torch.zeros(1, dtype=like.dtype, device=like.device)
        return found


class _NoAttention(_Nothing):
    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return self._zero(hidden_states), None


class _NoMlp(_Nothing):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return self._zero(hidden_states)


_NO_ATTENTION, _NO_MLP, _NO_NORM = _NoAttention(), _NoMlp(), nn.Identity()


def skip_view(target: Target, skips: SkipSet) -> list[nn.Module | None]:
    """Return the target's layers without the sublayers in `skips`; untouched layers are the target's own objects."""
    return [
        _without(layer, index in skips.attention, index in skips.mlp)
        for index, layer in enumerate(target.layers)
    ]


def _without(layer: nn.Module, attention: bool, mlp: bool) -> nn.Module | None:
    """Return `layer` without its attention or MLP: itself, a shallow copy, or None when nothing is left."""
    if attention and mlp:
        return None
    if not (attention or mlp):
        return layer
    return _hollow(layer, ["attention"] if attention else ["mlp"])


def _hollow(layer: nn.Module, parts: Iterable[str]) -> nn.Module:
    """Return a shallow copy of `layer` whose `parts`, and the norms that only serve them, do nothing."""
    view = copy.copy(layer)
    view._modules = dict(layer._modules)
    for part in parts:
        view._modules["self_attn" if part == "attention" else "mlp"] = (
            _NO_ATTENTION if part == "attention" else _NO_MLP
        )
        norm = _norms(layer).get(part)
        if norm is not None:
            view._modules[norm] = _NO_NORM
    return view


def _norms(layer: nn.Module) -> dict[str, str]:
    """Name the norm that serves one sublayer alone; empty where the arrangement is unknown (a norm of zero is zero)."""
    names = {name for name in layer._modules if name.endswith("layernorm")}
    if names == set(_PRE_NORM.values()):
        return _PRE_NORM
    return _POST_NORM if names == set(_POST_NORM.values()) else {}


@once
@torch.inference_mode()
def unsupported_reason(target: Target) -> str | None:
    """Return None when sublayers of `target` can be left out exactly, otherwise the reason in one sentence.

    Look for both sublayers, then check that a layer without them passes its input on unchanged.
    """
    for layer in target.layers:
        if not {"self_attn", "mlp"} <= set(layer._modules):
            return f"{type(layer).__name__} has no `self_attn` and `mlp` that could be skipped one by one"
        if "forward" in vars(layer):
            return (
                "its layers' forward was replaced by a wrapper, which would run the sublayers to be skipped"
            )
    cache, window = target.new_cache(1, 1), Window(target.geometry(1), [0], 1)
    hidden = target.embed(torch.zeros((1, 1), dtype=torch.long, device=target.device))
    hollow = [_hollow(layer, ["attention", "mlp"]) for layer in target.layers]
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
