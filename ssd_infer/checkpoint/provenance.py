"""Say what was evaluated and where: weights, recipe, command, versions, machine."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from ssd_infer.checkpoint.content import is_added
from ssd_infer.checkpoint.draft_spec import FACTS, WEIGHTS
from ssd_infer.checkpoint.machine import cpu_name, device_name
from ssd_infer.checkpoint.manifest import read_record, sha256
from ssd_infer.checkpoint.options import LoadOptions
from ssd_infer.threads import waiting
from ssd_infer.version import __version__

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def weights_sha256(checkpoint: str | Path) -> str:
    """Hash the weight files: of one file its plain SHA-256, of several the hash of their names and hashes.

    A draft module in a folder of its own counts by its own files, which name the weights of its model.
    """
    folder = Path(checkpoint)
    kinds = (
        [path for path in sorted(folder.glob(pattern)) if not is_added(path.name)] for pattern in _WEIGHTS
    )
    files = next(filter(None, kinds), sorted(folder.glob("config.json")))
    files = files or [path for path in (folder / FACTS, folder / WEIGHTS) if path.is_file()]
    digests = [(path.name, sha256(path)) for path in files]
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def identity(checkpoint: str, options: LoadOptions | None = None) -> dict[str, Any]:
    """Return the report's `identity` object; what the checkpoint does not say is null.

    What `options` load beside the checkpoint's weights, or instead of them, counts among the weights.
    """
    options = LoadOptions() if options is None else options
    record = read_record(Path(checkpoint))
    recipe = record.get("recipe")
    if isinstance(recipe, dict):
        recipe = recipe.get("name") or recipe.get("kind")
    step = record.get("step")
    provenance = record.get("provenance")
    return {
        "checkpoint": str(checkpoint),
        "weights_sha256": loaded_sha256(checkpoint, options),
        "recipe": None if recipe is None else str(recipe),
        "step": step if isinstance(step, int) else None,
        "config": _config(Path(checkpoint), record),
        "command": command_line(sys.argv),
        "git": git_state(Path(__file__).resolve().parent),
        "extra": ({"trained_by": provenance} if provenance else {}) | _loading(options),
    }


def loaded_sha256(checkpoint: str | Path, options: LoadOptions) -> str:
    """Hash what was loaded: the checkpoint's weights or its GGUF file, and an adapter's where one joins them."""
    file = None if options.gguf_file is None else Path(checkpoint) / options.gguf_file
    base = weights_sha256(checkpoint) if file is None else sha256(file)
    if options.adapter is None or not Path(options.adapter).is_dir():
        return base
    return hashlib.sha256(json.dumps([base, weights_sha256(options.adapter)]).encode()).hexdigest()


def _loading(options: LoadOptions) -> dict[str, Any]:
    """Return how the checkpoint was loaded, as JSON takes it; nothing secret, and nothing where all was usual."""
    hidden = ("token", "cache_dir")
    given = {name: value for name, value in options.given().items() if name not in hidden}
    return {"loading": {name: _plain(value) for name, value in given.items()}} if given else {}


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: what is no number, text, list or mapping as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def command_line(arguments: list[str]) -> str:
    """Return a command a shell takes again; a package's `__main__.py` is named as `python -m package`."""
    program = Path(arguments[0])
    start = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [arguments[0]]
    return shlex.join([*start, *map(_without_secret, arguments[1:])])


def _without_secret(argument: str) -> str:
    """Return an argument of a command line as a report may show it."""
    key, sign, _ = argument.partition("=")
    return f"{key}=..." if sign and key.lstrip("+") == "token" else argument


def environment(seed: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the report's `environment` object."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "ssd": __version__,
        "device": device_name(device) if device.type == "cuda" else str(device),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "seed": seed,
        "extra": {"openmp_waits": waiting()},
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of the checkout `folder` is tracked in, or None."""
    sha = _git(folder, "rev-parse", "HEAD")
    if not sha or not _git(folder, "ls-files", "--", "."):
        return None
    return {"sha": sha, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _config(folder: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the training configuration saved with the checkpoint as plain data, or None."""
    if isinstance(record.get("config"), dict):
        return dict(record["config"])
    if not (folder / "config.yaml").is_file():
        return None
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=False)
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None
