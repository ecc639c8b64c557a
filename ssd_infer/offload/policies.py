"""Who leaves when an expert has to come in, and how few reads anyone could have got away with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

Key = tuple[int, int]
"""(decoder layer, expert)."""


class Policy(Protocol):
    """Choose what leaves the resident set."""

    name: ClassVar[str]
    looks_ahead: ClassVar[bool]
    """Whether experts a draft has named for the coming verify pass stay, if anything else can go."""

    def touch(self, key: Key, tokens: int) -> None:
        """Note that a forward pass used `key` for `tokens` tokens."""

    def worth(self, key: Key) -> float:
        """Return how much `key` is worth keeping; the least worthy leaves."""


class Lru:
    """Least recently used leaves."""

    name: ClassVar[str] = "lru"
    looks_ahead: ClassVar[bool] = False

    def __init__(self) -> None:
        """Start with no history."""
        self._now = 0
        self._last: dict[Key, int] = {}

    def touch(self, key: Key, tokens: int) -> None:
        """Note the time of use."""
        del tokens
        self._now += 1
        self._last[key] = self._now

    def worth(self, key: Key) -> float:
        """Return the time of the last use."""
        return self._last.get(key, 0)


class Lfu:
    """Least often used leaves; each use counts half after `half_life` uses of the same layer."""

    name: ClassVar[str] = "lfu"
    looks_ahead: ClassVar[bool] = False

    def __init__(self, half_life: float = 32.0) -> None:
        """Start with no history."""
        self._decay = 0.5 ** (1 / half_life)
        self._clock: dict[int, int] = {}
        self._count: dict[Key, tuple[float, int]] = {}

    def touch(self, key: Key, tokens: int) -> None:
        """Count a use by `tokens` tokens."""
        now = self._clock[key[0]] = self._clock.get(key[0], 0) + 1
        count, then = self._count.get(key, (0.0, now))
        self._count[key] = float(count * self._decay ** (now - then)) + tokens, now

    def worth(self, key: Key) -> float:
        """Return the decayed count."""
        count, then = self._count.get(key, (0.0, 0))
        return float(count * self._decay ** (self._clock.get(key[0], 0) - then))


class Ahead(Lfu):
    """As `Lfu`, but what the draft has named for the coming verify pass stays: Belady's rule as far as one can see."""

    name: ClassVar[str] = "ahead"
    looks_ahead: ClassVar[bool] = True


POLICIES: dict[str, type[Lru | Lfu]] = {"lru": Lru, "lfu": Lfu, "ahead": Ahead}


def belady_loads(visits: Sequence[tuple[int, Collection[int]]], capacity: int) -> int:
    """Return the fewest loads any policy needs for `visits` of (layer, experts) with room for `capacity` experts.

    Belady's rule with bypass: after each visit the experts whose next use comes soonest stay. A visit may need more
    than `capacity`; its experts then pass through.
    """
    uses: dict[Key, list[int]] = {}
    for time, (layer, experts) in enumerate(visits):
        for expert in experts:
            uses.setdefault((layer, expert), []).append(time)
    after = {key: iter(times) for key, times in uses.items()}
    upcoming = {key: next(times) for key, times in after.items()}
    held: set[Key] = set()
    loads = 0
    for layer, experts in visits:
        needed = {(layer, expert) for expert in experts}
        loads += len(needed - held)
        for key in needed:
            upcoming[key] = next(after[key], len(visits))
        held = set(sorted(held | needed, key=lambda key: (upcoming[key], key))[:capacity])
    return loads
