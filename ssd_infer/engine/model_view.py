"""What views of a model have in common: made and checked once a model, and never what keeps it alive."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from torch import nn

from ssd_infer.engine.devices import computing_device
from ssd_infer.engine.kernels.products import renew
from ssd_infer.errors import SSDError, UnsupportedModelError, one_line

_CACHE_NAMES = ("cache", "past_key_values", "layer_past")


class ModelView:
    """A model seen through its own modules; `of` is how to get one."""

    embedding: nn.Module
    """The model's token embedding."""
    layers: list[nn.Module]
    head: nn.Module
    _known: ClassVar[weakref.WeakKeyDictionary[nn.Module, ModelView]]

    def __init_subclass__(cls) -> None:
        """Give each kind of view its own memory of models."""
        super().__init_subclass__()
        cls._known = weakref.WeakKeyDictionary()

    def __init__(self, model: nn.Module) -> None:
        """Remember `model` weakly."""
        self._model = weakref.ref(model)
        self._seen = _parts(model)

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return the checked view of `model`, made once and again when its modules were replaced.

        Raises UnsupportedModelError where it cannot be exact, or where it cannot be examined.
        """
        known = cls._known.get(model)
        if known is None or known._seen != _parts(model):
            _check_weights(model)
            try:
                known = cls(model)
                known._check_exact()
            except SSDError:
                raise
            except Exception as error:
                raise UnsupportedModelError(
                    f"{type(model).__name__} cannot be decoded layer by layer here: examining it failed with "
                    f"{one_line(error)}"
                ) from error
            cls._known[model] = known
        known._renew()
        return cast(Self, known)

    @property
    def model(self) -> nn.Module:
        """The model itself, held weakly: knowing a model must not keep it alive."""
        model = self._model()
        if model is None:
            raise RuntimeError("the model this view belongs to was deleted")
        return model

    @property
    def device(self) -> torch.device:
        """Device of the embedding, where token ids are expected; of one that lies on disk, where it computes."""
        return computing_device(self.embedding)

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the hidden states."""
        return next(self.embedding.parameters()).dtype

    def _renew(self) -> None:
        """Take over what was assigned to attributes of the model's modules since."""
        for part in (*self.layers, self.head):
            renew(part)

    def _check_exact(self) -> None:
        """Raise UnsupportedModelError when the view is another function than the model."""
        raise NotImplementedError


_View = TypeVar("_View", bound=ModelView)


def _check_weights(model: nn.Module) -> None:
    """Raise UnsupportedModelError for weights that are nowhere: on the meta device, and nothing fetches them.

    Some may be there for a reason: routed experts of which only a share is in memory.
    """
    absent = all(weight.is_meta for weight in model.parameters())
    if absent and not any(hasattr(module, "_hf_hook") for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be decoded layer by layer here: it holds no weights (they are on the meta "
            "device); load or fill them first"
        )


def _parts(model: nn.Module) -> list[tuple[Any, ...]]:
    """List what a view of `model` is made of and what runs around it: modules, their classes, replaced forwards, hooks.

    Hooks count on modules above the layers, whose own forward is not run here; those on other modules run as ever.
    What may hold the model is listed by number, since a view is held as long as its model is.
    """
    found: list[tuple[Any, ...]] = [(type(model), id(vars(model).get("forward")))]
    for name, module in model.named_modules():
        if module is not model:
            found.append((module, type(module), vars(module).get("forward")))
        if not any(part.isdecimal() for part in name.split(".")):
            found.append((*module._forward_pre_hooks, *module._forward_hooks))
    return found


def once(ask: Callable[[_View], str | None]) -> Callable[[_View], str | None]:
    """Remember the answer of `ask` for each view; a model whose modules were replaced gets another view."""
    known: weakref.WeakKeyDictionary[_View, str | None] = weakref.WeakKeyDictionary()

    @wraps(ask)
    def answer(view: _View) -> str | None:
        if view not in known:
            known[view] = ask(view)
        return known[view]

    return answer


def cache_keyword(forward: Callable[..., Any]) -> str:
    """Return the name under which `forward` takes a cache: transformers renamed `past_key_values` to `cache`."""
    known = inspect.signature(forward).parameters
    return next((name for name in _CACHE_NAMES if name in known), "past_key_values")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold `model` in evaluation mode, and put every module of it back as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
