"""Whether the slots of a decoding can lie in memory, asked before any is reserved."""

from __future__ import annotations

import os

import torch

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.errors import ConfigError, Problem

POSITION_BYTES = 8
"""A slot's position, which all rows share."""
_WIDEST = 8
"""Keys and values of a layer are never this many times as wide as its hidden states, which spares most calls a pass."""


def check_room(target: Target, rows: int, prompt: int, new: int) -> None:
    """Raise ConfigError where `new` tokens after a prompt of `prompt`, in `rows` rows, need more than all memory.

    Memory in use is not counted: what may fit is tried.
    """
    slots, memory = prompt + new, memory_of(target)
    width = getattr(target.config, "hidden_size", None)
    widest = target.num_layers * _WIDEST * int(width or 0) * target.dtype.itemsize
    if memory is None or (width and slots * (rows * widest + POSITION_BYTES) <= memory):
        return
    size = slot_bytes(target)
    needed = slots * (rows * size + POSITION_BYTES)
    if needed > memory:
        fits = max(1, memory // (rows * size + POSITION_BYTES) - prompt)
        rule = (
            f"asks for {rows} × {slots} slots of {size} bytes, {needed / 1e9:,.0f} GB, and there are "
            f"{memory / 1e9:,.0f} GB of memory"
        )
        remedy = f"lower it, well below {fits}" + (", or decode fewer rows at once" if rows > 1 else "")
        raise ConfigError([Problem("max_new_tokens", rule, new, remedy)])


@torch.inference_mode()
def slot_bytes(target: Target) -> int:
    """Return the bytes of one row's slot over all layers, as a pass of one token leaves them."""
    cache, window = target.new_cache(1, 1), Window(target.geometry(1), [0], 1)
    ids = torch.zeros((1, 1), dtype=torch.long, device=target.device)
    target.run(target.embed_at(ids, window, cache), window, cache)
    return RowCache.nbytes(cache)  # without states of recurrence, which do not grow with the text


def memory_of(target: Target) -> int | None:
    """Return the bytes of memory of all devices that hold weights; None where they are not known."""
    found = {part.device for part in target.model.parameters() if not part.is_meta} | {target.device}
    sizes = [_bytes_of(device) for device in found]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _bytes_of(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None
