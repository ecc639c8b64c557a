"""Names of the processor and of the device that a model runs on."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch


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
