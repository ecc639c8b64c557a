"""Tell before any weights load whether a device asked for is there."""

from __future__ import annotations

import torch

from ssd_infer.errors import ConfigError, Problem


def resolve_device(name: str) -> str:
    """Return the device training takes for `name`: of `auto` the accelerator there is, else the CPU."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_problems(name: str) -> list[Problem]:
    """Return the problem when `name` (auto, cpu, mps, cuda or cuda:N) is no device of this machine."""
    kind, colon, index = name.partition(":")
    counts = {
        "auto": 1,
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    count = counts.get(kind, 0)
    there = index.isdecimal() and int(index) < count if colon else count > 0
    remedy = "use device=cpu, or device=auto for what there is"
    return [] if there else [Problem("device", "is not available on this machine", name, remedy)]


def check_device(name: str) -> None:
    """Raise ConfigError when `name` is no device of this machine."""
    problems = device_problems(name)
    if problems:
        raise ConfigError(problems)
