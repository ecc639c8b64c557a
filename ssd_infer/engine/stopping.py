"""When a row ends: EOS, a stop sequence, or its length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_infer.engine.session import Row


@dataclass(frozen=True, slots=True)
class StopRule:
    """End a row at any token of `eos`, or right after any of the token `sequences` among its output."""

    eos: frozenset[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, eos: int | Sequence[int] | None, sequences: Sequence[Sequence[int]] | None) -> StopRule:
        """Build a rule from what `generate` takes."""
        ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        return cls(frozenset(ids), tuple(tuple(item) for item in sequences or () if item))

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
