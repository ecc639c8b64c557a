"""Sums that become ratios only after they were added over micro-batches and ranks, and the file they are kept in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssd_infer.atomic import write_text
from ssd_infer.jsonio import from_json, to_json
from ssd_train.recipes.base import Ratio


class RatioSums:
    """Numerators and denominators by name; one object for training, one for each evaluation."""

    def __init__(self) -> None:
        """Start empty."""
        self._sums: dict[str, Tensor] = {}

    def add(self, ratios: Mapping[str, Ratio]) -> None:
        """Add each (numerator, denominator), in double precision where the device has it."""
        for name, (num, den) in ratios.items():
            dtype = torch.float32 if num.device.type == "mps" else torch.float64
            pair = torch.stack([num.detach().to(dtype), den.detach().to(num.device, dtype)])
            self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def drain(self, reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Return the ratios, summed over ranks by `reduce`, and start again from zero.

        Every rank sees the same names: which terms a step has follows from the step alone.
        """
        if not self._sums:
            return {}
        names = sorted(self._sums)
        table = torch.stack([self._sums[name] for name in names])
        rows = (table if reduce is None else reduce(table)).tolist()
        self._sums = {}
        return {name: num / den for name, (num, den) in zip(names, rows, strict=True) if den}

    def state(self) -> dict[str, list[float]]:
        """Return the sums of this rank as plain numbers, for a checkpoint written between two log lines."""
        return {name: pair.tolist() for name, pair in self._sums.items()}

    def load(self, state: Mapping[str, list[float]], device: torch.device) -> None:
        """Add sums that `state` returned, of this rank or of another."""
        dtype = torch.float32 if device.type == "mps" else torch.float64
        for name, pair in state.items():
            loaded = torch.tensor(pair, dtype=dtype, device=device)
            self._sums[name] = self._sums[name] + loaded if name in self._sums else loaded


class MetricsFile:
    """`metrics.jsonl`: one object a step; a second write at the same step joins the first."""

    def __init__(self, path: Path) -> None:
        """Open lazily; nothing is written before the first `write`."""
        self.path = path
        self._last: dict[str, Any] = {}
        self._offset = 0

    def keep_until(self, step: int) -> None:
        """Drop lines beyond `step` and a torn last line, so that a resumed run writes no step twice."""
        rows = [row for row in _rows(self.path) if row["step"] <= step] if self.path.exists() else []
        lines = [_line(row) for row in rows]
        if self.path.exists():
            write_text(self.path, "".join(lines))
        self._last = rows[-1] if rows else {}
        self._offset = sum(len(line.encode()) for line in lines[:-1])

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append `values` for `step`, or merge them into the line already there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            if self._last.get("step") == step:
                self._last = {**self._last, **values}
                file.seek(self._offset)
                file.truncate()
            else:
                self._last = {"step": step, **values}
                self._offset = file.seek(0, os.SEEK_END)
            file.write(_line(self._last).encode())


def _line(row: Mapping[str, Any]) -> str:
    return to_json(row) + "\n"


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(from_json(line))
        except ValueError:  # a line cut short by a kill; everything after it was never written
            break
    return rows
