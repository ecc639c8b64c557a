"""Say where a checkpoint comes from: code, command, versions, machine and configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ssd_infer.checkpoint.provenance import command_line

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


def collect(cfg: Any, *, tokenizer_hash: str | None = None) -> dict[str, Any]:
    """Return a JSON-ready record of what produced this run; `cfg` is the root dataclass."""
    return {
        "command": command_line(sys.argv),
        "config_hash": config_hash(cfg),
        "tokenizer_hash": tokenizer_hash,
        "git": git_state(),
        "versions": {"python": platform.python_version(), "ssd": _version("ssd"), **_versions()},
        "machine": machine(),
    }


def config_hash(cfg: Any) -> str:
    """Return a hash of every value of the dataclass `cfg`, independent of the order of its fields."""
    values = dataclasses.asdict(cfg)
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def git_state(directory: Path | None = None) -> dict[str, Any]:
    """Return commit and dirty flag of the checkout holding this package; both None outside a repository."""
    where = directory or Path(__file__).resolve().parent
    sha = _git(where, "rev-parse", "HEAD")
    if sha is None or not _git(where, "ls-files", "--", "."):
        return {"sha": None, "dirty": None}
    status = _git(where, "status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "dirty": None if status is None else bool(status)}


def machine() -> dict[str, Any]:
    """Return operating system, processor, cores, threads and accelerators."""
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": accelerators,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(where: Path, *command: str) -> str | None:
    """Return what git prints, or None where there is no git or no repository."""
    try:
        done = subprocess.run(  # noqa: S603 -- fixed arguments
            ["git", "-C", str(where), *command],  # noqa: S607 -- git is where PATH says
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
