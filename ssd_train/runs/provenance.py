"""Say where a checkpoint comes from: code, command, versions, machine and configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ssd_infer.checkpoint.machine import cpu_name
from ssd_infer.checkpoint.provenance import command_line, git_state
from ssd_infer.version import __version__

_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "hydra-core",
    "omegaconf",
    "wandb",
    "deepspeed",
)


def collect(cfg: Any, tokenizer_hash: str | None = None) -> dict[str, Any]:
    """Return a JSON-ready record of what produced this run; `cfg` is the root dataclass.

    `tokenizer_hash` says what the tokenizer does to text (`data.tokenizer.vocabulary_hash`); None without one.
    """
    return {
        "command": command_line(sys.argv),
        "config_hash": config_hash(cfg),
        "tokenizer_hash": tokenizer_hash,
        "git": git_state(Path(__file__).resolve().parent) or {"sha": None, "dirty": None},
        "versions": {"python": platform.python_version(), "ssd": __version__, **_versions()},
        "machine": machine(),
    }


def config_hash(cfg: Any) -> str:
    """Return a hash of every value of the dataclass `cfg`, independent of the order of its fields."""
    values = dataclasses.asdict(cfg)
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def machine() -> dict[str, Any]:
    """Return operating system, processor, cores, threads and accelerators."""
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": accelerators,
    }


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
