"""Grouped-query attention without copies: query group and verify window are folded into one matrix product.

Queries `(B, H, T, D)` become `(B, KV, G·T, D)`, so keys and values are read once per key/value head and never
repeated. Probabilities are shown to a listener before they are dropped, which is where a selector gets its scores; at
most one row's (or, for long contexts, one head's) block exists at a time.

A layer view (`views.py`) names this function as its attention backend and carries an `Attend` object of its session;
the backend only hands over to it. Nothing is global and the target's configuration is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.flex import flex_window_attention
from ssd_infer.engine.kernels.listener import Listener, Probs
from ssd_infer.engine.kernels.products import large, pays, product
from ssd_infer.engine.tree_window import TreeWindow
from ssd_infer.engine.window import Window
from ssd_infer.errors import UnsupportedModelError

BACKEND = "ssd_grouped"
_BLOCK_BYTES = 2 << 20
"""Scores of a block of rows."""
_FEW = 6
"""Queries that are taken as columns."""
_ALIGN = 64
_FLEX_FROM = 256 << 20
_UNKNOWN = ("softcap", "s_aux", "position_bias")


class Attend(Protocol):
    """How the attention modules of one view attend."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Return `(B, T, H, D)` for queries `(B, H, T, D)` and keys and values `(B, KV, S, D)`."""


def _backend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Tensor, None]:
    """Serve as transformers' attention function for modules of a view, which mask by themselves."""
    del attention_mask
    unknown = [name for name in _UNKNOWN if more.get(name) is not None]
    if unknown or dropout:
        raise UnsupportedModelError(f"grouped attention knows nothing of {', '.join(unknown) or 'dropout'}")
    attend: Attend = module.ssd_attend  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend.attend(module.layer_idx, query, key, value, scale), None  # type: ignore[arg-type]


AttentionInterface.register(BACKEND, _backend)


class FullAttention:
    """Causal attention of prefill and verify passes over all slots of a row cache."""

    def __init__(
        self, cache: RowCache, listener: Listener | None = None, prompts: Sequence[int] = (), ends: int = 0
    ) -> None:
        """Attend in `cache`; show `listener` every window, and the last `ends` queries of `prompts` (lengths)."""
        self._cache = cache
        self.listener = listener
        self._prompts = prompts
        self._ends = ends

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend causally at the window the cache is aimed at; see `Attend`."""
        window = self._cache.window
        if window.start != 0:
            if _too_large(query, key) and window.consecutive:
                return flex_window_attention(layer, query, key, value, scaling, window, self.listener)
            held = self._cache.held(layer)
            _check_held(held, key, value)
            return window_attention(layer, query, *held, scaling, window, self.listener)
        if self._ends:
            self._show_ends(layer, query, key, value, scaling)
        return prefill_attention(query, key, value, scaling)

    def _show_ends(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> None:
        """Attend from the last queries of each prompt for the listener's sake; neighbours of one length go together."""
        row = 0
        for end, same in groupby(self._prompts):
            rows = slice(row, row + len(list(same)))
            row, first = rows.stop, max(0, end - self._ends)
            tail = Window(self._cache.window.geometry, [first] * (rows.stop - rows.start), end - first)
            ends = query[rows, :, first:end]
            window_attention(layer, ends, key[rows], value[rows], scaling, tail, self.listener, rows.start)


def _check_held(held: tuple[Tensor, Tensor], key: Tensor, value: Tensor) -> None:
    """Raise UnsupportedModelError where the cache holds something else than what is attended to."""
    if any(slots.shape[1::2] != part.shape[1::2] for slots, part in zip(held, (key, value), strict=True)):
        raise UnsupportedModelError(
            "the cache holds compressed keys and values (multi-head latent attention)"
        )


def _too_large(query: Tensor, key: Tensor) -> bool:
    """Tell whether an accelerator should not hold all scores at once."""
    rows = query.shape[0] * query.shape[1] * query.shape[2]
    return query.device.type == "cuda" and 4 * rows * key.shape[2] > _FLEX_FROM


def prefill_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attend causally from slot 0: `(B, H, T, D)` against `(B, KV, T, D)` → `(B, T, H, D)`."""
    out = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] > key.shape[1]
    )
    return out.transpose(1, 2)


def window_attention(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    window: Window,
    listener: Listener | None,
    first_row: int = 0,
) -> Tensor:
    """Attend from `(B, H, T, D)` queries at `window` to `(B, KV, S, D)` slots; return `(B, T, H, D)`.

    Slots past the window are never seen; a few may be read, so that products keep their shapes for some steps.
    `first_row` is what the listener knows the first of these rows as.
    """
    batch, heads, width, _ = query.shape
    kv = key.shape[1]
    folded = (query * scaling).reshape(batch, kv, heads // kv * width, -1)
    out = query.new_empty((*folded.shape[:3], value.shape[-1]))
    for rows, part in _blocks(folded, window):
        starts = window.starts[rows]
        end = min(-(max(starts) + width) // _ALIGN * -_ALIGN, key.shape[2])
        scores = _scores(folded[rows, part], key[rows, part, :end])
        if isinstance(window, TreeWindow):
            _hide_strangers(scores, window, rows)
        else:
            _hide_future(scores, starts, width)
        probs = scores.softmax(dim=-1)
        if listener is not None:
            known = slice(rows.start + first_row, rows.stop + first_row)
            listener.hear(layer, known, part, Probs(probs.unflatten(2, (-1, width))), starts)
        _weigh(probs, value[rows, part, :end], out[rows, part])
    return out.view(batch, heads, width, -1).transpose(1, 2)


def selected_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, hidden: Tensor | None
) -> Tensor:
    """Attend from one query a row `(B, H, 1, D)` to all of `(B, KV, W, D)` but `hidden` `(B, 1, 1, W)` (additive)."""
    batch, heads, _, size = query.shape
    kv = key.shape[1]
    folded = query.reshape(batch, kv, heads // kv, size)
    out = functional.scaled_dot_product_attention(folded, key, value, attn_mask=hidden, scale=scaling)
    return out.reshape(batch, 1, heads, -1)


def _blocks(folded: Tensor, window: Window) -> Iterator[tuple[slice, slice]]:
    """Cut a pass into blocks of rows and heads whose scores stay in cache; long rows of different lengths go alone."""
    batch, kv, queries, _ = folded.shape
    every = slice(0, kv)
    if folded.device.type != "cpu":
        yield slice(0, batch), every
        return
    if queries > _FEW and _alone(folded, window.end):
        yield from ((slice(b, b + 1), slice(h, h + 1)) for b in range(batch) for h in range(kv))
        return
    row_bytes = folded.dtype.itemsize * kv * queries * window.end
    ragged = max(window.starts) - min(window.starts) > window.end // 16
    step = max(1, (_BLOCK_BYTES // 64 if ragged else _BLOCK_BYTES) // row_bytes)
    yield from ((slice(b, min(b + step, batch)), every) for b in range(0, batch, step))


def _alone(folded: Tensor, slots: int) -> bool:
    """Tell whether products of one head and `slots` slots should go one by one: large ones, in float32 and wider.

    Either library is faster so than with a batch of them, and only so can oneDNN be asked for.
    """
    return folded.dtype.itemsize > 2 and large(folded.shape[-2] * folded.shape[-1] * slots)


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return `(b, h, M, S)` for queries `(b, h, M, D)` and keys `(b, h, S, D)`; few queries are taken as columns."""
    if queries.shape[-2] <= _FEW and queries.device.type == "cpu":
        return (keys @ queries.transpose(-1, -2)).transpose(-1, -2).contiguous()
    if queries.shape[:2] == (1, 1) and _alone(queries, keys.shape[-2]):
        return product(queries[0, 0], keys[0, 0])[None, None]
    return queries @ keys.transpose(-1, -2)


def _weigh(probs: Tensor, values: Tensor, out: Tensor) -> None:
    """Write the mean of values `(b, h, S, D)` under `probs` `(b, h, M, S)` to `out` `(b, h, M, D)`."""
    if not pays(probs, probs.shape[-2] * values.shape[-2] * values.shape[-1]):
        out.copy_(probs @ values)  # which may be of autocast's precision
        return
    for row in range(probs.shape[0]):
        for head in range(probs.shape[1]):
            out[row, head] = product(probs[row, head], values[row, head].T)


def _hide_future(scores: Tensor, starts: list[int], width: int) -> None:
    """Set scores `(rows, heads, G·T, S)` of slots after each query's own to -inf."""
    first = min(starts)
    if first == max(starts):
        if scores.shape[-1] > first + width:
            scores[..., first + width :] = -torch.inf
        if width > 1:
            group = scores.shape[2] // width
            scores[..., first : first + width] += _future(width, group, scores.dtype, scores.device)
        return
    tail = scores[..., first:].unflatten(2, (-1, width))
    slots = torch.arange(first, scores.shape[-1], device=scores.device)
    own = torch.tensor(starts, device=scores.device)[:, None] + torch.arange(width, device=scores.device)
    tail.masked_fill_((slots > own.unsqueeze(-1))[:, None, None], -torch.inf)


def _hide_strangers(scores: Tensor, window: TreeWindow, rows: slice) -> None:
    """Set scores `(rows, heads, G·T, S)` of slots that hold no ancestor of a node to -inf."""
    hidden = window.hidden()
    own = hidden[rows] if len(hidden) > 1 else hidden
    scores[..., window.end :] = -torch.inf
    seen = scores[..., : own.shape[-1]].unflatten(2, (-1, window.width))
    seen.masked_fill_(own[:, None, None, :, : seen.shape[-1]], -torch.inf)


@cache
def _future(width: int, group: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an additive mask `(G·T, T)` of the slots of a window that come after each of its queries."""
    hidden = torch.full((width, width), -torch.inf, dtype=dtype, device=device).triu(1)
    return hidden.repeat(group, 1)
