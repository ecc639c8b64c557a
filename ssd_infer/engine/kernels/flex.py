"""Window attention on accelerators: one fused kernel for output and log-sum-exp, probabilities block by block after it.

`flex_attention` is compiled where the device is an accelerator and runs uncompiled elsewhere, which is slow but the
same function: that is how it is tested on machines without one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.kernels.listener import Listener, Probs
from ssd_infer.engine.window import Window

_BLOCK = 4096


@cache
def _kernel(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention


def _fused(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return output `(B, H, T, D)` and log-sum-exp `(B, H, T)`, which newer releases of torch ask for differently."""
    from torch.nn.attention import flex_attention

    run, request = _kernel(query.device.type != "cpu"), getattr(flex_attention, "AuxRequest", None)
    if request is None:
        out, lse = run(query, key, value, return_lse=True, **options)
        return out, lse
    out, more = run(query, key, value, return_aux=request(lse=True), **options)
    return out, more.lse


def flex_window_attention(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    window: Window,
    listener: Listener | None,
) -> Tensor:
    """Attend from `(B, H, T, D)` queries at `window` to `(B, KV, S, D)` slots; return `(B, T, H, D)`."""
    starts = torch.tensor(window.starts, device=query.device)

    def causal(score: Tensor, row: Tensor, _head: Tensor, step: Tensor, slot: Tensor) -> Tensor:
        return torch.where(slot <= starts[row] + step, score, -torch.inf)

    grouped = query.shape[1] > key.shape[1]
    out, lse = _fused(query, key, value, score_mod=causal, scale=scaling, enable_gqa=grouped)
    if listener is not None:
        _tell(layer, query * scaling, key, lse, window, listener)
    return out.transpose(1, 2)


def _tell(layer: int, query: Tensor, key: Tensor, lse: Tensor, window: Window, listener: Listener) -> None:
    """Recompute probabilities exp(q·k - lse) for blocks of slots and show them."""
    batch, heads, width, size = query.shape
    kv = key.shape[1]
    folded = query.reshape(batch, kv, -1, size)
    norm = lse.reshape(batch, kv, -1, 1).float()
    own = torch.tensor(window.starts, device=query.device)[:, None] + torch.arange(width, device=query.device)
    for first in range(0, key.shape[2], _BLOCK):
        part = key[:, :, first : first + _BLOCK]
        probs = (folded @ part.transpose(-1, -2)).float().sub_(norm).exp_()
        slots = torch.arange(first, first + part.shape[2], device=query.device)
        probs = probs.view(batch, kv, heads // kv, width, -1)
        probs.masked_fill_((slots > own.unsqueeze(-1))[:, None, None], 0.0)
        listener.hear(layer, slice(0, batch), slice(0, kv), Probs(probs), window.starts, first)
