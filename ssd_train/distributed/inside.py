"""Run a recipe's whole step inside the forward of the wrapped model.

FSDP2 and ZeRO-3 hold a parameter whole only while the forward that owns it runs. A recipe reads the output head and
calls norms beside the model's own forward, so its step has to happen while the wrapper's forward is still open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

Out = TypeVar("Out")


class Inside:
    """The model as a recipe sees it inside its own forward: a call skips the wrapper's hooks, which already ran."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any]) -> None:
        """Call `forward`, and be `model` in every other respect."""
        self._model, self._forward = model, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own forward."""
        return self._forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return what the model has under `name`."""
        return getattr(self._model, name)


def run_inside(
    wrapped: nn.Module,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    step: Callable[[Any, Mapping[str, Tensor]], tuple[Tensor, Out]],
) -> tuple[Tensor, Out]:
    """Return what `step(model, inputs)` returns, run between the hooks of `wrapped` around `model`.

    The first part of the result must be the tensor that carries the gradient: wrappers hang their backward hooks on
    what a forward returns.
    """
    if wrapped is model and not hasattr(model, "unshard"):
        return step(model, inputs)
    forward, own = model.forward, model.__dict__.get("forward")
    results: list[Out] = []

    def whole(batch: Mapping[str, Tensor]) -> Tensor:
        _give_back(model, own)  # a step may also call the model itself
        loss, rest = step(Inside(model, forward), batch)
        results.append(rest)
        return loss

    model.__dict__["forward"] = whole
    try:
        loss = wrapped(inputs)
    finally:
        _give_back(model, own)
    return loss, results[0]


def _give_back(model: nn.Module, own: Any) -> None:
    """Undo the shadowing of `model.forward`, which was `own` if that was shadowed before."""
    if own is None:
        model.__dict__.pop("forward", None)
    else:
        model.__dict__["forward"] = own
