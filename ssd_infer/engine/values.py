"""Plain Python values from what callers pass: numpy scalars and 0-d tensors count, true and false are no numbers."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Return the Python scalar inside a numpy scalar, a 0-d array or a 0-d tensor; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def unboxed(value: Any) -> Any:
    """Return `value` in Python's own numbers and lists, where it is made of numbers of numpy or torch."""
    if isinstance(value, list | tuple):
        return type(value)(unboxed(item) for item in value) if type(value) in (list, tuple) else value
    if hasattr(value, "ndim") and hasattr(value, "tolist"):
        return value.tolist()
    return value


def whole(value: Any) -> int | None:
    """Return `value` as an int where it is an integer; None for anything else, `True` and `2.0` among it."""
    value = plain(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """Return `value` as a float where it is a finite number; None for anything else."""
    value = plain(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def flag(value: Any) -> bool | None:
    """Return `value` where it is true or false; None for anything else, 0 and 1 among it."""
    value = plain(value)
    return value if isinstance(value, bool) else None


def shown(value: Any) -> object:
    """Return what an error message shows of `value`: short values as they are, of others their type and shape."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print longer ones
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape):
        return f"{type(value).__name__} of {value.dtype} {tuple(shape)}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 -- whatever the repr of a caller's object runs into
        return f"{type(value).__name__} object"
    return value if text and len(text) <= 60 else f"{type(value).__name__} {text[:50]}…".replace(" …", "")
