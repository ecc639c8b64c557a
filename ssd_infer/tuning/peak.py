"""Peak memory of a piece of work: of the device where there is one, of the process under Linux."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Self

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Measure the highest memory between entering and leaving, everything that was there before included.

    `bytes` is None where the system does not tell: anywhere but on CUDA devices and under Linux.
    """

    def __init__(self, device: torch.device) -> None:
        """Watch `device` if it is a CUDA device, otherwise this process."""
        self._device = device
        self.bytes: int | None = None

    def __enter__(self) -> Self:
        """Forget earlier peaks, and give back what is free but still held."""
        self._watched = True
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            _trim()
            try:
                _RESET.write_text("5")  # resets VmHWM, see proc_pid_clear_refs(5)
            except OSError:
                self._watched = False
        return self

    def __exit__(self, *_: object) -> None:
        """Read the peak."""
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device)
        elif self._watched:
            self.bytes = _resident_peak()


def _trim() -> None:
    """Have the C library return freed memory, which would else count as resident; glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_peak() -> int | None:
    lines = _STATUS.read_text().splitlines()
    found = next((line.split() for line in lines if line.startswith("VmHWM:")), None)
    return None if found is None else 1024 * int(found[1])
