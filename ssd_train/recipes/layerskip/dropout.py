"""Layer dropout: a sample that drops a layer is not computed there at all (LayerSkip, arXiv 2404.16710, 4.1).

Which samples drop which layer is a pure function of (seed, step, layer, place of the sample in the step), so it is
the same on every rank, after a resume, under activation recomputation, and however a step is cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssd_infer.errors import UnsupportedModelError

_MASK64 = (1 << 64) - 1
_RAGGED = ("cu_seq_lens_q", "cu_seq_lens_k")


def uniforms(
    seed: int, step: int, layer: int, count: int, offset: int = 0
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return `count` numbers in [0, 1) for the samples `offset…` of a step, from Philox (Salmon et al., 2011)."""
    bits = np.random.Philox(key=seed & _MASK64, counter=[0, 0, layer, step]).random_raw(offset + count)
    return np.asarray((bits[offset:] >> np.uint64(11)) * 2.0**-53)


def survivors(
    probabilities: Sequence[float], seed: int, step: int, batch: int, offset: int = 0
) -> list[Tensor | None]:
    """Return, layer by layer, the indices of the samples that run it; None where all of them do."""
    kept: list[Tensor | None] = []
    for layer, probability in enumerate(probabilities):
        keep = uniforms(seed, step, layer, batch, offset) >= probability if probability > 0 else None
        kept.append(None if keep is None or keep.all() else torch.from_numpy(np.flatnonzero(keep)))
    return kept


@contextmanager
def dropping(
    layers: Sequence[nn.Module], kept: Sequence[Tensor | None], *, touch_empty: bool = False
) -> Iterator[None]:
    """Run each layer on its survivors only, while the context lasts.

    The layers' `forward` is shadowed on the instance and restored on the way out, also after an exception, so
    parameters, hooks and what a checkpoint contains never change. With `touch_empty` a layer without survivors still
    runs one sample times zero, so that every rank takes part in the same collectives.
    """
    patched: list[nn.Module] = []
    try:
        for layer, keep in zip(layers, kept, strict=True):
            if keep is not None:
                shadow = _on_survivors(layer.forward, keep, touch_empty)
                layer.__dict__["forward"] = shadow
                patched.append(layer)
        yield
    finally:
        for layer in patched:
            del layer.__dict__["forward"]


def _on_survivors(forward: Callable[..., Any], keep: Tensor, touch_empty: bool) -> Callable[..., Any]:
    """Return a forward `(B, T, d)` → `(B, T, d)` that computes the rows `keep` and passes the others through."""

    def run(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        batch = hidden_states.shape[0]
        empty = keep.numel() == 0
        if empty and not touch_empty:
            return hidden_states
        _refuse_ragged(kwargs)
        rows = (torch.zeros(1, dtype=torch.long) if empty else keep).to(
            hidden_states.device, non_blocking=True
        )
        chosen = [select_rows(value, rows, batch) for value in args]
        named = {name: select_rows(value, rows, batch) for name, value in kwargs.items()}
        out = forward(hidden_states.index_select(0, rows), *chosen, **named)
        states = out[0] if isinstance(out, tuple) else out
        states = states.to(hidden_states.dtype)
        back = hidden_states.index_add if empty else hidden_states.index_copy
        whole = back(0, rows, states * 0.0 if empty else states)
        return (whole, *out[1:]) if isinstance(out, tuple) else whole

    return run


def select_rows(value: Any, rows: Tensor, batch: int) -> Any:
    """Select `rows` from every tensor of `value` whose first dimension is the batch; shared tensors stay whole."""
    if isinstance(value, Tensor):
        return (
            value.index_select(0, rows)
            if batch > 1 and value.dim() > 0 and value.shape[0] == batch
            else value
        )
    if isinstance(value, tuple):
        return tuple(select_rows(part, rows, batch) for part in value)
    if isinstance(value, Mapping):
        return {name: select_rows(part, rows, batch) for name, part in value.items()}
    return value


def _refuse_ragged(kwargs: Mapping[str, Any]) -> None:
    if any(kwargs.get(name) is not None for name in _RAGGED) or kwargs.get("use_cache"):
        raise UnsupportedModelError(
            "recipe.layer_dropout: a batch flattened to ragged sequences, or a key/value cache, has no samples to "
            "leave out; pack to fixed blocks, or set recipe.layer_dropout.enabled=false"
        )
