"""Tell before any weights load whether a device asked for is there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

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


def input_device(model: Any) -> torch.device:
    """Return where `model` expects token ids: the device of its embedding, or where one on disk computes."""
    return computing_device(model.get_input_embeddings())


def computing_device(module: nn.Module) -> torch.device:
    """Return the device of a module's weights; of weights on disk, which accelerate fetches, where they are used."""
    found = next(module.parameters()).device
    hook: Any = getattr(module, "_hf_hook", None) if found.type == "meta" else None
    return found if hook is None else torch.device(hook.execution_device)
