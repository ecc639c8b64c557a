"""Tell before any weights load whether a device asked for is there."""

from __future__ import annotations

import torch

from ssd_infer.errors import ConfigError, Problem


def check_device(name: str) -> None:
    """Raise ConfigError when `name` (auto, cpu, mps, cuda or cuda:N) is no device of this machine."""
    if name == "auto":
        return
    kind, colon, index = name.partition(":")
    counts = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    count = counts.get(kind, 0)
    there = index.isdecimal() and int(index) < count if colon else count > 0
    if not there:
        raise ConfigError([Problem("device", "is not available here", name, "use device=cpu")])
