"""Collect every broken rule of a configuration, so that one run of a command shows them all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from ssd_infer.errors import ConfigError, Problem


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a remedy for a misspelt `word`: the close match among `known`, else all of them."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose from: {', '.join(names)}" if names else "remove it"


class Checks:
    """Gather problems under one dotted `prefix`; nothing is raised before `finish`."""

    def __init__(self, prefix: str = "", problems: list[Problem] | None = None) -> None:
        self.prefix = prefix
        self.problems: list[Problem] = [] if problems is None else problems

    def under(self, name: str) -> Checks:
        """Return checks for the node `name` below this one; both gather into one list."""
        return Checks(f"{self.prefix}{name}.", self.problems)

    def require(self, holds: bool, key: str, rule: str, value: object, remedy: str = "") -> bool:
        """Note that `rule` is broken at `key` unless it `holds`; return `holds`."""
        if not holds:
            self.fail(key, rule, value, remedy)
        return holds

    def fail(self, key: str, rule: str, value: object, remedy: str = "") -> None:
        """Note that `rule` is broken at `key`."""
        self.problems.append(Problem(self.prefix + key, rule, value, remedy))

    def choice(self, key: str, value: str, options: Collection[str]) -> bool:
        """Demand one of `options`."""
        rule = f"must be one of {', '.join(options)}"
        close = get_close_matches(value, list(options), n=1)
        return self.require(
            value in options, key, rule, value, f"did you mean {close[0]!r}?" if close else ""
        )

    def at_least(self, key: str, value: float, low: float, remedy: str = "") -> bool:
        """Demand a finite number of at least `low`."""
        return self.require(
            math.isfinite(value) and value >= low, key, f"must be at least {low}", value, remedy
        )

    def above_zero(self, key: str, value: float, remedy: str = "") -> bool:
        """Demand a finite number above zero."""
        return self.require(math.isfinite(value) and value > 0, key, "must be above 0", value, remedy)

    def within(self, key: str, value: float, low: float, high: float, *, open_end: bool = False) -> bool:
        """Demand a number in `[low, high]`, or in `[low, high)` with `open_end`."""
        holds = low <= value < high if open_end else low <= value <= high
        return self.require(holds, key, f"must be in [{low}, {high}{')' if open_end else ']'}", value)

    def finish(self) -> None:
        """Raise `ConfigError` with all problems, if there are any."""
        if self.problems:
            raise ConfigError(self.problems)
