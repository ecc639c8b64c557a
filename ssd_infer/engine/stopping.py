"""When a row ends: EOS, a stop sequence, or its length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ssd_infer.engine.session import Row


@dataclass(frozen=True, slots=True)
class StopRule:
    """End a row at any token of `eos`, or right after any of the token `sequences` among its output."""

    eos: frozenset[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, eos: Any, sequences: Sequence[Sequence[int]] | None) -> StopRule:
        """Build a rule from what `generate` takes; `eos` is one id or several, in numbers, arrays or tensors."""
        ids = eos.tolist() if hasattr(eos, "tolist") else eos
        listed = [] if ids is None else list(ids) if isinstance(ids, Iterable) else [ids]
        stops = tuple(tuple(int(token) for token in item) for item in sequences or () if len(item))
        return cls(frozenset(int(token) for token in listed), stops)

    def extend(self, row: Row, block: list[int]) -> tuple[int, bool]:
        """Append `block` to `row` as far as the row goes on; return tokens appended and whether the row ended."""
        block = block[: row.remaining]
        if not self.sequences and self.eos.isdisjoint(block):
            row.tokens.extend(block)
            return len(block), row.remaining <= 0
        for count, token in enumerate(block, start=1):
            row.tokens.append(token)
            if token in self.eos or self._ends_sequence(row):
                return count, True
        return len(block), row.remaining <= 0

    def _ends_sequence(self, row: Row) -> bool:
        output = row.emitted
        return any(len(stop) <= output and tuple(row.tokens[-len(stop) :]) == stop for stop in self.sequences)
