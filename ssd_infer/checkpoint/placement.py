"""Precision and device a model is loaded to, checked before any weights are read."""

from __future__ import annotations

from typing import Any

import torch

from ssd_infer.errors import Problem


def read_dtype(dtype: Any, problems: list[Problem]) -> str | torch.dtype:
    """Return what `from_pretrained` takes as `dtype`; None and auto keep the checkpoint's own."""
    if dtype is None or dtype == "auto":
        return "auto"
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    rule, remedy = "must be a floating-point type of torch", "try float32, bfloat16, float16 or auto"
    problems.append(Problem("dtype", rule, dtype, remedy))
    return "auto"


def read_device(device: Any, problems: list[Problem]) -> torch.device:
    """Return the device asked for; None and auto are CUDA when there is one, else the CPU."""
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    remedy = "use device=cpu, or device=auto for what there is"
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, ValueError):
        problems.append(Problem("device", "is not available on this machine", device, remedy))
        return torch.device("cpu")
    if found.type == "meta":
        problems.append(Problem("device", "holds no weights, so that nothing can be decoded", device, remedy))
    return found
