"""When a row ends: EOS, a stop sequence, or its length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ssd_infer.engine.session import Row
from ssd_infer.engine.values import plain, shown, whole
from ssd_infer.errors import ConfigError, Problem

Ids = tuple[int, ...]
NO_END = -1
"""As `eos_token_id`: nothing ends a row but its length."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """End a row at any token of `eos`, or right after any of the token `sequences` among its output."""

    eos: frozenset[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, eos: Any, sequences: Any) -> StopRule:
        """Build a rule as `read` does; raises ConfigError with everything that is wrong."""
        problems: list[Problem] = []
        found = cls.read(eos, sequences, problems)
        if problems:
            raise ConfigError(problems)
        return found

    @classmethod
    def read(
        cls, eos: Any, sequences: Any, problems: list[Problem], eos_key: str = "eos_token_id"
    ) -> StopRule:
        """Build a rule from what callers pass; `eos` is one id or several, in numbers, arrays or tensors.

        What is wrong is added to `problems`.
        """
        ids = _read_eos(eos, eos_key, problems)
        stops = [] if sequences is None else _read_sequences(sequences, problems)
        return cls(frozenset(ids), tuple(stops))

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


def _read_eos(eos: Any, key: str, problems: list[Problem]) -> Ids:
    """Return the ids that end a row; None is none, and so is the -1 that transformers' users write for it."""
    given = plain(eos)
    ids = () if given is None or whole(given) == NO_END else _ids(given if _many(given) else [given])
    if ids is None:
        rule = "must be a token id or a list of them, each an integer >= 0"
        problems.append(Problem(key, rule, shown(eos), "[] lets nothing but the length end a row"))
    return ids or ()


def _read_sequences(sequences: Any, problems: list[Problem]) -> list[Ids]:
    """Return the token sequences that end a row."""
    rule = "must be a list of token sequences, each a list of integers >= 0 that is not empty"
    if not _many(sequences):
        problems.append(Problem("stop_sequences", rule, shown(sequences), "try [[5, 6]]"))
        return []
    found = []
    for index, item in enumerate(sequences):
        ids = _ids(item) if _many(plain(item)) else None
        if ids:
            found.append(ids)
        else:
            remedy = "give the ids of each sequence in a list of its own, such as [[5, 6]]"
            problems.append(Problem(f"stop_sequences[{index}]", rule, shown(item), remedy))
    return found


def _many(value: Any) -> bool:
    """Tell whether `value` holds several items in an order."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _ids(values: Iterable[Any]) -> Ids | None:
    """Return token ids, or None when any is none."""
    ids = [whole(value) for value in values]
    return (
        None if any(token is None or token < 0 for token in ids) else tuple(i for i in ids if i is not None)
    )
