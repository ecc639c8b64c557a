"""The list of files a training leaves in each checkpoint, with their hashes, and what differs from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ssd_infer.jsonio import from_json

MANIFEST = "ssd_manifest.json"
"""File of a checkpoint that lists size and SHA-256 of all others but `RECORD`, which is written again later."""
RECORD = "ssd.json"


def damage(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint against its own manifest, None if nothing is."""
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"has no readable {MANIFEST}"
    for name, entry in files:
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256(path) != entry["sha256"]:
            return f"{name} does not have the hash it was saved with"
    return None if read_record(directory) else f"has no readable {RECORD}"


def read_record(directory: Path) -> dict[str, Any]:
    """Return a checkpoint's `ssd.json`, empty if it has none that can be read."""
    try:
        record = from_json((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
