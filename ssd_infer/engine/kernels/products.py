"""Float32 products on CPUs, through whichever of torch's two libraries is the faster one on this machine.

`torch.nn.functional.linear` takes MKL for float32. On a processor that is not Intel's, MKL may reach half of the
arithmetic that oneDNN reaches, which torch brings as well: on two cores of a Zen 5, 209 against 477 GFLOP/s for a large
square, and 0.23 against 0.08 ms for 8 tokens and a weight of 1536 × 576. Verifying a window is made of such products.
Whether it is so here is measured once (`onednn_pays`, about three milliseconds), and oneDNN's result is compared before
it is ever used; both compute in IEEE float32.

The target is not touched: `product_view` returns shallow copies of the modules on the way to its linear layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WORK = 3 << 19
"""Multiplications from which oneDNN's cost of a call, ten to fifteen microseconds, is earned back."""
_LEAD = 1.2
_PLAIN = (Tensor, nn.Parameter)
_PROBE = (64, 512)
_TURNS = 8
_SEEN = "ssd_product_view_of"


def product(
    hidden: Tensor, weight: Tensor, bias: Tensor | None = None, *, least: int | None = None
) -> Tensor:
    """Return `hidden` `(…, K)` times `weight` `(N, K)` transposed, plus `bias` `(N)`, as `functional.linear` does.

    `least` replaces the number of multiplications that oneDNN asks for: fewer pay where the weight is in no cache.
    Keeps no gradient where it leaves `functional.linear`; with gradients enabled it never does.
    """
    if (
        type(weight) in _PLAIN
        and weight.dtype is hidden.dtype
        and pays(hidden, hidden.numel() * weight.shape[0], least)
    ):
        out: Tensor = _onednn()(hidden, weight, bias, "none", [], "")
        return out
    return functional.linear(hidden, weight, bias)


def large(work: int) -> bool:
    """Tell whether `work` multiplications earn back what a call of oneDNN costs."""
    return work >= _WORK


def pays(hidden: Tensor, work: int, least: int | None = None) -> bool:
    """Tell whether `product` leaves `functional.linear` for `work` multiplications with `hidden`.

    It does for float32 in CPU memory without gradients or autocast, where oneDNN is faster.
    """
    return (
        (large(work) if least is None else work >= least)
        and hidden.dtype is torch.float32
        and hidden.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and onednn_pays(torch.get_num_threads())
    )


def product_view(module: nn.Module, rows: int = 32) -> nn.Module:
    """Return `module` multiplying by `product`, sharing every parameter; itself where that cannot pay.

    Linear layers too small to pay for passes of `rows` tokens stay as they are, and so do subclasses (quantised layers,
    adapters: what is plain inside them changes) and modules whose forward was replaced, since that belongs to the
    original: wrapped ones, `torch.compile`'s. Hooks are kept. The view is in evaluation mode.
    """
    if not onednn_pays(torch.get_num_threads()):
        return module
    return _view(module, max(1, rows))


def _view(module: nn.Module, rows: int) -> nn.Module:
    if "forward" in vars(module):
        return module
    if type(module) is nn.Linear:
        return _copied(module, Product, module._modules) if _worth(module.weight, rows) else module
    own = {name: child for name, child in module._modules.items() if child is not None}
    seen = {name: _view(child, rows) for name, child in own.items()}
    if all(seen[name] is child for name, child in own.items()):
        return module
    return _copied(module, type(module), {**module._modules, **seen})


def renew(view: nn.Module) -> None:
    """Give `view` what was assigned to attributes of its modules since it was made, as adapters are switched."""
    module = vars(view).get(_SEEN)
    if module is None:
        return
    _fill(view, module, view._modules)
    for child in view._modules.values():
        if child is not None:
            renew(child)


def _copied(module: nn.Module, kind: type[nn.Module], children: dict[str, nn.Module | None]) -> nn.Module:
    """Return a shallow copy as a `kind`, past classes that refuse to be pickled (parametrised ones)."""
    view = object.__new__(kind)
    _fill(view, module, children)
    return view


def _fill(view: nn.Module, module: nn.Module, children: dict[str, nn.Module | None]) -> None:
    own = {_SEEN: module, "_modules": children, "training": False, "_compiled_call_impl": None}
    object.__setattr__(view, "__dict__", {**vars(module), **own})


class Product(nn.Linear):
    """A linear layer whose parameters are another's."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `(…, N)` for `(…, K)`."""
        return product(hidden, self.weight, self.bias)


def _worth(weight: Tensor, rows: int) -> bool:
    return weight.dtype is torch.float32 and weight.device.type == "cpu" and large(weight.numel() * rows)


@cache
def onednn_pays(threads: int) -> bool:
    """Measure whether oneDNN's float32 products are 1.2 times as fast as torch's own choice with `threads` threads."""
    del threads  # what the answer is remembered for
    found = _onednn()
    if found is None:
        return False
    rows, size = _PROBE
    draw = torch.Generator("cpu").manual_seed(0)
    hidden, weight = (
        torch.randn(count, size, generator=draw, dtype=torch.float32, device="cpu") for count in (rows, size)
    )
    calls: list[Callable[[], Tensor]] = [
        lambda: functional.linear(hidden, weight),
        lambda: found(hidden, weight, None, "none", [], ""),
    ]
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        usual, other = (call() for call in calls)
        if not torch.allclose(usual, other, rtol=1e-4, atol=1e-4):
            return False
        times = [[_seconds(call) for call in calls] for _ in range(_TURNS)]
    first, second = (min(seconds) for seconds in zip(*times, strict=True))
    return bool(first > _LEAD * second)


def _seconds(call: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@cache
def _onednn() -> Any:
    """Return oneDNN's linear layer, with which torch's own compiler replaces `functional.linear`; None without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if packet is None else packet.default
