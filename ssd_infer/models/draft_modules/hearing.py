"""What a draft module is trained on: states inside one forward pass of the target, and what its layers got beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from ssd_infer.engine.model_view import cache_keyword
from ssd_infer.models.draft_modules.bodies import arguments_of, own_layers
from ssd_infer.models.draft_modules.module import DraftModule


@dataclass(slots=True)
class Heard:
    """States of the last forward pass of a model."""

    states: dict[int, Tensor] = field(default_factory=dict)
    """Un-normed states `(B, T, d)` after so many layers: 0 is what enters the first, L comes before the final norm."""
    arguments: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each layer was given beside its states, by name, without a cache."""

    def positional(self, module: DraftModule) -> dict[str, Any]:
        """Return what the layer was given that `module` stands in for; nothing for one that attends to nothing."""
        return {} if module.thin else self.arguments[module.source]


@contextmanager
def listening(model: nn.Module, depths: Sequence[int]) -> Iterator[Heard]:
    """Hear what goes through the layers of `model` in the block: states after each of `depths` layers, and arguments.

    Hooks on the model's own layers do it, so a pass may have any mask, run without gradients, or be sharded; the model
    is as before afterwards.
    """
    layers = own_layers(model)
    heard, wanted = Heard(), set(depths)
    with ExitStack() as stack:
        for at, layer in enumerate(layers):
            hook = _before(heard, at, at in wanted)
            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if len(layers) in wanted:
            stack.callback(layers[-1].register_forward_hook(_after(heard, len(layers))).remove)
        yield heard


def _before(heard: Heard, at: int, wanted: bool) -> Any:
    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states, rest = arguments_of(layer, args, kwargs)
        if wanted:
            heard.states[at] = states
        without = {cache_keyword(layer.forward): None, "use_cache": False}
        heard.arguments[at] = rest | {name: value for name, value in without.items() if name in rest}

    return hook


def _after(heard: Heard, depth: int) -> Any:
    def hook(layer: nn.Module, args: Any, out: Any) -> None:
        del layer, args
        heard.states[depth] = cast(Tensor, out[0] if isinstance(out, tuple) else out)

    return hook
