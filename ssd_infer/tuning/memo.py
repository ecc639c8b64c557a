"""What was measured on a model, kept while the model, its weights and what it runs on stay the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from ssd_infer.checkpoint.machine import device_name

Value = TypeVar("Value")
_memos: weakref.WeakSet[Memo[Any]] = weakref.WeakSet()


class Memo(Generic[Value]):
    """Values by model and key; forgotten when the weights change, apart for each device, precision and thread count.

    The model is held weakly. Knowing that the weights are the same costs a look at each parameter, not a read of it.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._kept: weakref.WeakKeyDictionary[nn.Module, tuple[int, dict[Hashable, Value]]] = (
            weakref.WeakKeyDictionary()
        )
        _memos.add(self)

    def get(self, model: nn.Module, key: Hashable) -> Value | None:
        """Return what is kept of `model` as it is and runs now, or None."""
        return self._values(model).get((key, environment_key(model)))

    def put(self, model: nn.Module, key: Hashable, value: Value) -> None:
        """Keep `value` for `model` as it is and runs now."""
        self._values(model)[key, environment_key(model)] = value

    def cached(self, model: nn.Module, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what is kept, or make it and keep it."""
        found = self.get(model, key)
        if found is None:
            found = make()
            self.put(model, key, found)
        return found

    def _values(self, model: nn.Module) -> dict[Hashable, Value]:
        version = weights_version(model)
        kept = self._kept.get(model)
        if kept is None or kept[0] != version:
            kept = self._kept[model] = (version, {})
        return kept[1]


@contextmanager
def apart() -> Iterator[None]:
    """Know nothing at the start of the block, and after it what was known before: `auto` is settled for it alone."""
    before = {memo: memo._kept for memo in _memos}
    for memo in before:
        memo._kept = weakref.WeakKeyDictionary()
    try:
        yield
    finally:
        for memo in _memos:
            memo._kept = before.get(memo, weakref.WeakKeyDictionary())


def weights_version(model: nn.Module) -> int:
    """Return a number that changes when parameters are written to, replaced or moved, or adapters switched."""
    parts: list[Hashable] = [(parameter.data_ptr(), _writes(parameter)) for parameter in model.parameters()]
    for module in model.modules():
        state = vars(module)
        if "_disable_adapters" in state or "merged_adapters" in state:
            active = state.get("_active_adapter")
            merged = state.get("merged_adapters")
            parts.append((str(active), bool(state.get("_disable_adapters")), str(merged)))
    return hash(tuple(parts))


def _writes(parameter: torch.Tensor) -> int:
    """Return how often `parameter` was written to; tensors made under inference mode do not count."""
    return -1 if parameter.is_inference() else int(parameter._version)


def environment(model: Any) -> dict[str, str]:
    """Say on what, and how, the model runs right now: device, CPU threads, dtype and attention backend."""
    first = next(model.parameters())
    return {
        "device": device_name(first.device),
        "threads": str(torch.get_num_threads()) if first.device.type == "cpu" else "",
        "dtype": str(first.dtype).removeprefix("torch."),
        "attention": str(getattr(model.config, "_attn_implementation", None)),
    }


def environment_key(model: nn.Module) -> tuple[str, ...]:
    """Return the environment as a key for what was measured under it."""
    return tuple(environment(model).values())
