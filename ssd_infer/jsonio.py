"""The one way this toolkit writes and reads JSON: strict JSON, in which a number that is none says so.

JSON has no NaN and no infinity, and a parser that keeps to the standard refuses a file with them. Such a value is
written as null, and the object it stands in says what it was: `{"loss": null, "nonfinite": {"loss": "NaN"}}`. Reading
puts it back; files of earlier versions, which hold a bare NaN, are read as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

REASONS = "nonfinite"
"""Key that says, for each value of the same object that is null for want of a finite number, what it was."""
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return `value` as strict JSON text; raises ValueError where no object can hold the reason of a null."""
    return json.dumps(strict(value), indent=indent, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return what `text` holds, with the numbers that `to_json` could not write back in their places."""
    return json.loads(text, object_hook=_restored)


def strict(value: Any) -> Any:
    """Return `value` with null for every number that is not finite, and the reasons beside it."""
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def _object(value: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a mapping without its non-finite numbers, also those in lists directly inside it."""
    reasons: dict[str, str] = {}
    found = {name: _noted(item, str(name), reasons) for name, item in value.items()}
    return found if not reasons else {**found, REASONS: reasons}


def _noted(item: Any, place: str, reasons: dict[str, str]) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        reasons[place] = _word(item)
        return None
    if isinstance(item, list | tuple):
        return [_noted(part, f"{place}/{index}", reasons) for index, part in enumerate(item)]
    return strict(item)


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _restored(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the numbers its reasons name; a key of that name which is none of ours stays."""
    reasons = found.get(REASONS)
    if not isinstance(reasons, dict) or not all(word in _WORDS for word in reasons.values()):
        return found
    rest = {name: item for name, item in found.items() if name != REASONS}
    for place, word in reasons.items():
        _put(rest, place, _WORDS[word])
    return rest


def _put(holder: dict[str, Any], place: str, number: float) -> None:
    """Set the null at `place`, a key or a key with list indices behind it; another value there stays."""
    if place in holder:
        holder[place] = number if holder[place] is None else holder[place]
        return
    name, *indices = place.split("/")
    inner: Any = holder.get(name)
    for index in indices[:-1]:
        inner = inner[int(index)]
    if indices and inner[int(indices[-1])] is None:
        inner[int(indices[-1])] = number
