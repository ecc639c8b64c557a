"""Under what a measurement holds: the machine, and how a model runs on it; everything but the weights."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

from ssd_infer.engine.target import Target


@cache
def cpu_name() -> str:
    """Return the processor's name, as exactly as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown"


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or of the processor behind `device`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else device.type


def surroundings(target: Target) -> dict[str, str]:
    """Say on what, and how, the model runs right now."""
    device = target.device
    return {
        "device": device_name(device),
        "threads": str(torch.get_num_threads()) if device.type == "cpu" else "",
        "dtype": str(target.dtype).removeprefix("torch."),
        "attention": str(getattr(target.config, "_attn_implementation", None)),
    }


def surroundings_key(target: Target) -> tuple[str, ...]:
    """Return the surroundings as a key for what was measured under them."""
    return tuple(surroundings(target).values())
