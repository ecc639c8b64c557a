"""What a draft module consists of: parts of the target's own layers with weights of their own, or thin matrices."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.checkpoint.families import family_of
from ssd_infer.engine.families.base import LIKE_LLAMA, CausalFamily
from ssd_infer.engine.families.parts import base_of
from ssd_infer.engine.positions import text_config
from ssd_infer.engine.recurrent import is_recurrent
from ssd_infer.engine.sublayers import without_parts
from ssd_infer.engine.target import Target
from ssd_infer.errors import UnsupportedModelError, one_line

_OUT = (
    *("o_proj", "out_proj", "c_proj", "dense", "wo", "proj_out"),
    *("down_proj", "dense_4h_to_h", "fc2", "fc_out", "w2", "output_linear"),
)
"""What families call the last projection of attention, and of an MLP."""
_WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
"""What configurations call the width of an MLP."""


class Thin(nn.Module):
    """x + U V x, with U zero at the start: the cheapest body, which attends to nothing and keeps no keys."""

    def __init__(self, size: int, rank: int, like: Tensor) -> None:
        """Make matrices for states of `size`, of device and dtype of `like`."""
        super().__init__()
        placed: Any = {"bias": False, "device": like.device, "dtype": like.dtype}
        self.down = nn.Linear(size, rank, **placed)
        self.up = nn.Linear(rank, size, **placed)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return states `(…, d)`."""
        added: Tensor = self.up(self.down(hidden))
        return hidden + added


def source_layer(target: Target, spec: DraftSpec) -> int:
    """Return the layer of the target that a module follows: the one after the exit, or the last; one that attends.

    Raises UnsupportedModelError where no layer attends.
    """
    wanted = spec.exit_layer if spec.form == "exit" else target.num_layers - 1
    name = target.family.sublayers.attention
    found = [at for at, layer in enumerate(own_layers(target.model)) if _attends(layer, name)]
    if not found:
        raise UnsupportedModelError(
            f"{target.name} has no layer with attention to copy; a draft module of it can be of kind rank only"
        )
    return min(found, key=lambda at: (abs(at - wanted), at))


def _attends(layer: nn.Module, name: str) -> bool:
    part = layer._modules.get(name)
    return part is not None and not is_recurrent(part)


def own_layers(model: nn.Module) -> list[nn.Module]:
    """Return the decoder layers of `model` itself; they may be wrapped or sharded."""
    own: Any = cast(Any, model).config
    family = cast(CausalFamily, family_of(getattr(own, "model_type", None)) or LIKE_LLAMA)
    config = text_config(model) if family.text_part else own
    return list(getattr(base_of(model, family.parts), family.parts.layers))[: config.num_hidden_layers]


def make_body(target: Target, spec: DraftSpec) -> nn.Module:
    """Return the body that `spec` names, for `target`; weights begin as copies of the layer it follows.

    Raises UnsupportedModelError where the model has no such part.
    """
    size, like = int(target.config.hidden_size), next(target.embedding.parameters())
    if spec.module == "rank":
        return Thin(size, spec.rank, like)
    source = source_layer(target, spec)
    try:
        body = _layer(target, spec, source)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{target.name}: no draft module can be made of its layers ({one_line(error)})"
        ) from error
    for part in body.modules():
        if isinstance(getattr(part, "layer_idx", None), int):
            cast(Any, part).layer_idx = 0
    return body


def _layer(target: Target, spec: DraftSpec, source: int) -> nn.Module:
    """Return a layer of the target's class, without its MLP or with one of another width where `spec` says so."""
    layer = own_layers(target.model)[source]
    if "forward" in vars(layer) or any(weight.is_meta for weight in layer.parameters()):
        raise UnsupportedModelError(
            f"{target.name}: the layers of this model are wrapped or not in memory, so that none can be copied"
        )
    if spec.module == "attention_mlp":
        return _narrow(target, layer, source, spec.mlp_width)
    body = copy.deepcopy(layer)
    return body if spec.module == "layer" else without_parts(target, body, ["mlp"])


def _narrow(target: Target, layer: nn.Module, source: int, width: int) -> nn.Module:
    """Return a layer of the same class whose MLP has `width`, everything else copied from `layer`."""
    config = copy.deepcopy(target.config)
    names = [name for name in _WIDTHS if hasattr(config, name)]
    for name in names:
        setattr(config, name, width)
    made = cast(Any, type(layer))(config, source)
    like = next(layer.parameters())
    body: nn.Module = made.to(like.device, like.dtype)
    own = dict(layer.named_parameters())
    with torch.no_grad():
        for name, weight in body.named_parameters():
            if name in own and own[name].shape == weight.shape:
                weight.copy_(own[name])
    narrow = [name for name, weight in body.named_parameters() if width in weight.shape]
    if not narrow:
        raise UnsupportedModelError(f"{target.name}: the width of its MLP cannot be set; use module layer")
    return body.train(layer.training)


@torch.no_grad()
def silence(target: Target, body: nn.Module) -> None:
    """Set the last projections of a body's sublayers to zero, so that it passes states on as they are."""
    if isinstance(body, Thin):
        body.up.weight.zero_()
        return
    told = target.family.sublayers
    for name in (told.attention, told.mlp):
        part = body._modules.get(name)
        for weight in () if part is None else _last_projections(part):
            weight.zero_()


def _last_projections(part: nn.Module) -> Iterable[nn.Parameter]:
    """Return the parameters of `part` that belong to what it ends with; all of a single matrix."""
    own = list(part.named_parameters())
    if isinstance(part, nn.Linear):
        return [weight for _, weight in own]
    return [weight for name, weight in own if any(step in _OUT for step in name.split("."))]


def run_body(body: nn.Module, hidden: Tensor, positional: dict[str, Any]) -> Tensor:
    """Return `(B, T, d)` for states `(B, T, d)`, with what a layer of the target got beside its states.

    The target may be of another precision than the body.
    """
    if isinstance(body, Thin):
        thin: Tensor = body(hidden)
        return thin
    out = body(hidden, **{name: _like(value, hidden) for name, value in positional.items()})
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found


def _like(value: Any, hidden: Tensor) -> Any:
    """Return numbers with a fraction in the precision of `hidden`, and anything else as it is."""
    if isinstance(value, tuple):
        return tuple(_like(part, hidden) for part in value)
    fraction = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(hidden.dtype) if fraction else value


def arguments_of(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """Return the states a layer was called with, and everything else by name."""
    bound = inspect.signature(layer.forward).bind(*args, **kwargs)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    states: Tensor = found.pop(next(iter(bound.signature.parameters)))
    return states, found
