"""Search results beside the checkpoint, and the question whether they hold where they are read.

Acceptance depends on the weights; which set is fastest depends on the machine as well: attention and MLP cost
different shares on every device, precision and attention backend. A result counts only where all of it matches.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import transformers

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.content import weights_digest
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.jsonio import from_json, to_json
from ssd_infer.offload.offload import resident_of
from ssd_infer.strategies.skip_layers.search_result import SearchResult
from ssd_infer.tuning.memo import environment
from ssd_infer.tuning.rounds import Prediction

FILE = "ssd_skip_set.json"
VERSION = 1


def search_environment(target: Target, do_sample: bool) -> dict[str, str]:
    """Say under what a search result holds; experts on disk are known by the checkpoint they were written from."""
    resident = resident_of(target.layers)
    index = None if resident is None else getattr(resident.store, "index", None)
    offloaded = {} if resident is None else {"experts": str(getattr(index, "source", None))}
    return {
        "weights": weights_digest(target.model),
        **environment(target.model),
        "transformers": transformers.__version__,
        "choice": "sampling" if do_sample else "greedy",
        **offloaded,
    }


def save(folder: Path, target: Target, do_sample: bool, found: SearchResult) -> Path:
    """Write `found` into `folder`, replacing its method's result for the same search_environment; return the file."""
    where = search_environment(target, do_sample)
    same = (where, found.method)
    others = [entry for entry in _entries(folder)[0] if (entry["where"], entry["method"]) != same]
    entry = {
        "where": where,
        "skip_attention": sorted(found.skips.attention),
        "skip_mlp": sorted(found.skips.mlp),
        "method": found.method,
        "seconds": found.seconds,
        "trials": found.trials,
        "outlook": asdict(found.prediction),
        "extra": found.extra,
    }
    path = folder / FILE
    text = to_json({"version": VERSION, "results": [*others, entry]}, indent=1, sort_keys=True)
    write_text(path, text + "\n")
    return path


def load(
    folder: Path, target: Target, do_sample: bool, method: str | None = None
) -> tuple[SearchResult | None, str]:
    """Return the result that holds here and "", or None and why none does ("" when there is no file).

    Of several methods the fastest by its prediction counts; with a `method` only that method's. Damaged results are
    passed over, and named when nothing else holds.
    """
    entries, damage = _entries(folder, target.num_layers)
    entries = [entry for entry in entries if method in (None, entry["method"])]
    where = search_environment(target, do_sample)
    matching = [_found(entry) for entry in entries if entry["where"] == where]
    if matching:
        return max(matching, key=lambda found: found.prediction.speedup), ""
    reasons = [f"does not hold here ({_difference(entries, where)})"] if entries else []
    reasons += [damage] if damage else []
    return None, f"{FILE} {' and '.join(reasons)}, so it was measured again" if reasons else ""


def _entries(folder: Path, num_layers: int | None = None) -> tuple[list[dict[str, Any]], str]:
    """Return the stored results that make sense (of `num_layers` layers), and what is wrong with the rest."""
    try:
        stored = from_json((folder / FILE).read_text("utf-8"))
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], f"cannot be read ({error.strerror})"
    except ValueError:
        return [], "is damaged"
    if not isinstance(stored, dict) or not isinstance(stored.get("results"), list):
        return [], "is damaged"
    if stored.get("version") != VERSION:
        return [], f"is of version {stored.get('version')}, not {VERSION}"
    sound = [entry for entry in stored["results"] if _is_sound(entry, num_layers)]
    return sound, "is damaged" if len(sound) < len(stored["results"]) else ""


def _is_sound(entry: Any, num_layers: int | None) -> bool:
    """Tell whether a stored result has all its parts, each of the right kind."""
    if not isinstance(entry, dict) or not isinstance(entry.get("where"), dict):
        return False
    prediction = entry.get("outlook")
    return (
        isinstance(entry.get("method"), str)
        and isinstance(entry.get("extra", {}), dict)
        and all(_are_layers(entry.get(key), num_layers) for key in ("skip_attention", "skip_mlp"))
        and all(_is_number(entry.get(key)) for key in ("seconds", "trials"))
        and isinstance(prediction, dict)
        and set(prediction) == {field.name for field in fields(Prediction)}
        and all(_is_number(value) for value in prediction.values())
        and _is_length(prediction["gamma"])
    )


def _are_layers(value: Any, num_layers: int | None) -> bool:
    return isinstance(value, list) and all(
        type(layer) is int and 0 <= layer < (math.inf if num_layers is None else num_layers)
        for layer in value
    )


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _difference(entries: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Name what differs from the closest stored result."""
    lists = [
        [
            f"{key} was {entry['where'].get(key)}, is {value}"
            for key, value in where.items()
            if entry["where"].get(key) != value
        ]
        for entry in entries
    ]
    closest = min(lists, key=len)
    return "; ".join(part for part in closest if not part.startswith("weights")) or "other weights"


def _found(entry: dict[str, Any]) -> SearchResult:
    skips = SkipSet.of(entry["skip_attention"], entry["skip_mlp"])
    prediction = Prediction(**entry["outlook"])
    return SearchResult(
        skips, prediction, entry["method"], entry["seconds"], entry["trials"], entry.get("extra", {})
    )
