"""Search results beside the checkpoint, and the question whether they hold where they are read.

Acceptance depends on the weights; which set is fastest depends on the machine as well: attention and MLP cost
different shares on every device, precision and attention backend. A result counts only where all of it matches.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from ssd_infer.engine.target import Target
from ssd_infer.engine.views import SkipSet
from ssd_infer.search.found import Found
from ssd_infer.search.outlook import Outlook

FILE = "ssd_skip_set.json"
VERSION = 1
_SAMPLES = 64


def fingerprint(model: nn.Module) -> str:
    """Hash names, shapes and evenly spaced values of all parameters; what training changes, this changes with."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        taken = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES]
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(taken.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def circumstances(target: Target, do_sample: bool) -> dict[str, str]:
    """Say under what a search result holds."""
    device = target.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "weights": fingerprint(target.model),
        "device": name,
        "threads": str(torch.get_num_threads()) if device.type == "cpu" else "",
        "dtype": str(target.dtype).removeprefix("torch."),
        "attention": str(getattr(target.config, "_attn_implementation", None)),
        "transformers": transformers.__version__,
        "choice": "sampling" if do_sample else "greedy",
    }


def folder_of(target: Target) -> Path | None:
    """Return the directory the model was loaded from, or None."""
    path = str(getattr(target.config, "_name_or_path", "") or "")
    return Path(path) if path and Path(path).is_dir() else None


def save(folder: Path, target: Target, do_sample: bool, found: Found) -> Path:
    """Write `found` into `folder`, replacing its method's result for the same circumstances; return the file."""
    where = circumstances(target, do_sample)
    same = (where, found.method)
    others = [entry for entry in _entries(folder) if (entry.get("where"), entry.get("method")) != same]
    entry = {
        "where": where,
        "skip_attention": sorted(found.skips.attention),
        "skip_mlp": sorted(found.skips.mlp),
        "method": found.method,
        "seconds": found.seconds,
        "trials": found.trials,
        "outlook": asdict(found.outlook),
        "extra": found.extra,
    }
    path = folder / FILE
    text = json.dumps({"version": VERSION, "results": [*others, entry]}, indent=1, sort_keys=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", "utf-8")
    return partial.replace(path)


def load(
    folder: Path, target: Target, do_sample: bool, method: str | None = None
) -> tuple[Found | None, str]:
    """Return the result that holds here and "", or None and why none does ("" when there is no file).

    Of several methods the fastest by its prediction counts; with a `method` only that method's.
    """
    entries = [entry for entry in _entries(folder) if method in (None, entry.get("method"))]
    where = circumstances(target, do_sample)
    matching = [_found(entry) for entry in entries if entry.get("where") == where]
    if matching:
        return max(matching, key=lambda found: found.outlook.speedup), ""
    if not entries:
        return None, ""
    return None, f"{FILE} does not hold here ({_difference(entries, where)}), so it was measured again"


def _entries(folder: Path) -> list[dict[str, Any]]:
    """Return the stored results; a damaged or foreign file counts as empty."""
    try:
        stored = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(stored, dict) or stored.get("version") != VERSION:
        return []
    return [entry for entry in stored.get("results", []) if isinstance(entry, dict)]


def _difference(entries: list[dict[str, Any]], where: dict[str, str]) -> str:
    """Name what differs from the closest stored result."""
    lists = [
        [
            f"{key} was {entry['where'].get(key)}, is {value}"
            for key, value in where.items()
            if entry["where"].get(key) != value
        ]
        for entry in entries
        if isinstance(entry.get("where"), dict)
    ]
    closest = min(lists, key=len, default=["it says nothing of its circumstances"])
    return "; ".join(part for part in closest if not part.startswith("weights")) or "other weights"


def _found(entry: dict[str, Any]) -> Found:
    skips = SkipSet.of(entry["skip_attention"], entry["skip_mlp"])
    outlook = Outlook(**entry["outlook"])
    return Found(skips, outlook, entry["method"], entry["seconds"], entry["trials"], entry.get("extra", {}))
