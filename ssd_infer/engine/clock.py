"""Wall-clock per phase; on CUDA by events, so that measuring adds no synchronisation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Add up seconds per phase name."""

    def __init__(self, device: torch.device) -> None:
        """Use CUDA events on a CUDA device, the monotonic clock elsewhere."""
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as part of `name`."""
        if self._cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._pending.append((name, begin, end))
        else:
            start = time.perf_counter()
            yield
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far; waits for the device once."""
        if self._pending:
            torch.cuda.synchronize()
            for name, begin, end in self._pending:
                self._seconds[name] = self._seconds.get(name, 0.0) + begin.elapsed_time(end) / 1e3
            self._pending.clear()
        return dict(self._seconds)


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that the host's clock measures its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
