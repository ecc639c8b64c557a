"""A checkpoint that is a name on the hub becomes a directory, which is what a report is about."""

from __future__ import annotations

from pathlib import Path

from ssd_infer.checkpoint.options import LoadOptions
from ssd_infer.errors import CheckpointError

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")
"""What a checkpoint is made of; weights in other formats are passed over where there are safetensors."""


def snapshot(name: str, options: LoadOptions) -> Path:
    """Return the directory of `name` at the revision of `options`, fetched unless the cache has it.

    Raises CheckpointError where it cannot be had.
    """
    from huggingface_hub import snapshot_download

    wanted = [*_FILES, *([options.gguf_file] if options.gguf_file else [])]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, **options.hub()))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"checkpoint: {name!r} cannot be had from the hub ({first})") from error


def cached_folder(name: str) -> Path | None:
    """Return the directory in which the cache keeps `name`, without asking the hub; None where it does not."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:
        return None
    return Path(found).parent if isinstance(found, str) else None
