"""Every draft strategy by name: this package's own, those installed beside it, and those a program registers.

Names, kinds and groups are known without importing torch; a strategy's class is imported when it is first used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

from ssd_infer.entries import check_same_name, imported, loaded, named_once
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.info import Entry, StrategyInfo, row_name

if TYPE_CHECKING:
    from ssd_infer.strategies.base import Strategy
    from ssd_infer.strategies.reported import KindStrategy, Reported

ENTRY_POINTS = "ssd_infer.strategies"
"""Group of entry points whose values are strategy classes, one a name."""
ROOMS = (
    "ngram",
    "early_exit",
    "draft_module",
    "skip_layers",
    "reduced_experts",
    "sparse_attention",
    "fewer_steps",
    "ctc_draft",
)
"""Packages beside this file; each lists its strategies as `ENTRIES`, without importing torch."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a report takes for a name or a group; a name may add variants, each after a plus."""

_registered: dict[str, type[Strategy]] = {}


def register(strategy: type[Strategy]) -> type[Strategy]:
    """Make `strategy` known under `strategy.info.name`, in this process; usable as a decorator.

    Raises ConfigError when it lacks what every strategy must answer, or when the name is taken.
    """
    _check_strategy(strategy)
    name = strategy.info.name
    if name in _own() or name in _installed() or _registered.get(name, strategy) is not strategy:
        raise ConfigError([Problem("draft", "is the name of another strategy", name, "choose another name")])
    _registered[name] = strategy
    return strategy


def infos() -> dict[str, StrategyInfo]:
    """Return what is known of every strategy, by name, in the order of a report."""
    known = {name: entry.info for name, entry in _own().items()}
    known |= {name: _loaded(point).info for name, point in _installed().items()}
    known |= {name: strategy.info for name, strategy in _registered.items()}
    return {info.name: info for info in sorted(known.values(), key=lambda info: (info.order, info.name))}


def installed() -> list[str]:
    """Return the names of strategies that packages beside this one bring; imports none of them."""
    return sorted(_installed())


def registry() -> dict[str, type[Strategy]]:
    """Return every strategy for causal models by name; imports all of them."""
    return {name: get(name) for name, info in infos().items() if info.kind == "causal"}


def get(name: str) -> type[Strategy]:
    """Return the strategy called `name`, importing its module only; raises ConfigError listing the names there are."""
    if name in _registered:
        return _registered[name]
    if name in _own() and _own()[name].info.kind == "causal":
        return cast("type[Strategy]", _imported(_own()[name]))
    if name in _installed():
        return _loaded(_installed()[name])
    known = [info.name for info in infos().values() if info.kind == "causal"]
    raise ConfigError(
        [Problem("draft", "must name a draft strategy", name, f"choose from {', '.join(sorted(known))}")]
    )


def reported(name: str) -> type[Reported]:
    """Return the strategy called `name` for models of any kind of model; ConfigError where there is none."""
    own = _own().get(name)
    return get(name) if own is None or own.info.kind == "causal" else _imported(own)


def of_kind(kind: str) -> type[KindStrategy]:
    """Return the strategy for models of `kind`, other than causal: its room decodes them, without a draft too."""
    own = next(entry for entry in _own().values() if entry.info.kind == kind and entry.info.listed)
    return cast("type[KindStrategy]", _imported(own))


def find(draft: str) -> StrategyInfo | None:
    """Return the strategy that `draft`, as typed on a command line, names as a row or a variant; None for none."""
    row = row_name(draft)
    return next((info for info in infos().values() if row in info.rows), None)


def of_row(row: str) -> StrategyInfo:
    """Return the strategy of a report's row, such as `early_exit+ngram` of `early_exit:ngram:t1`."""
    known = {name: info for info in infos().values() for name in info.rows}
    parts = row.split(":")
    for length in range(len(parts), 0, -1):
        if ":".join(parts[:length]) in known:
            return known[":".join(parts[:length])]
    raise ValueError(f"no strategy has a row {row!r}")


def group_of(row: str) -> str:
    """Return the group of a report's row, such as `skip_layer`; ValueError where no strategy has such a row."""
    return of_row(row).group


def basics() -> list[str]:
    """Return the strategies every report names, variants apart, in its order."""
    return [info.name for info in infos().values() if info.listed and info.name == info.row.partition(":")[0]]


def choices(kind: str | None = None) -> list[str]:
    """Return what `draft=` takes in an evaluation of models of `kind`, or of any: all, groups, strategies, variants."""
    known = [info for info in infos().values() if kind in (None, info.kind)]
    rows = [row for info in known for row in (info.name, *info.rows)]
    return list(dict.fromkeys(["all", *(info.group for info in known), *rows]))


def draft_problem(draft: str, kind: str | None = None) -> Problem | None:
    """Return what is wrong with `draft=` for an evaluation of a model of `kind` (None: not known yet), or None."""
    if draft in choices(kind) or row_name(draft) in choices(kind):
        return None
    found = find(draft)
    if found is not None and kind is not None:
        rule = f"does not apply: {found.needs or f'it drafts for {found.kind} models'}"
        return Problem("draft", rule, draft, f"one of {', '.join(choices(kind))}")
    rule = "must be all, a group or a strategy"
    return Problem("draft", rule, draft, f"{_nearest(draft, choices(kind))}one of {', '.join(choices(kind))}")


def _nearest(draft: str, known: Sequence[str]) -> str:
    near = get_close_matches(row_name(draft), known, n=1)
    return f"did you mean {near[0]}? " if near else ""


def _imported(entry: Entry) -> type[Reported]:
    return cast("type[Reported]", imported(entry.place))


@cache
def _own() -> dict[str, Entry]:
    """Return the strategies of this package by name."""
    rooms = (import_module(f"{__package__}.{room}") for room in ROOMS)
    return {entry.info.name: entry for room in rooms for entry in cast("Sequence[Entry]", room.ENTRIES)}


@cache
def _installed() -> dict[str, EntryPoint]:
    """Return the entry points of packages installed beside this one, by name; names of our own are theirs no more."""
    return named_once((point for point in _points() if point.name not in _own()), "draft")


def _points() -> Iterator[EntryPoint]:
    yield from entry_points(group=ENTRY_POINTS)


@cache
def _loaded(point: EntryPoint) -> type[Strategy]:
    """Import the strategy behind an entry point; ConfigError when that fails or is no strategy of that name."""
    strategy = loaded(point, "draft")
    _check_strategy(strategy)
    check_same_name(point, "draft", "strategy", strategy.info.name)
    return cast("type[Strategy]", strategy)


def _check_strategy(strategy: Any) -> None:
    """Raise ConfigError unless `strategy` is a class that answers what is asked of every strategy."""
    from ssd_infer.strategies.base import Strategy

    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise ConfigError([Problem("strategy", "must be a subclass of Strategy", strategy)])
    info = getattr(strategy, "info", None)
    if not isinstance(info, StrategyInfo):
        raise ConfigError([Problem("strategy.info", "must be a StrategyInfo", info)])
    if info.kind != "causal":
        raise ConfigError([Problem("strategy.info.kind", "must be causal", info.kind)])
    _check_names(info)
    missing = sorted(getattr(strategy, "__abstractmethods__", ()))
    if missing:
        raise ConfigError([Problem("strategy", f"must define {', '.join(missing)}", strategy.__name__)])


def _check_names(info: StrategyInfo) -> None:
    """Raise ConfigError for names that a report could not hold, or that `draft=` takes for something else."""
    rule, problems = "must begin with a letter and hold lower-case letters, digits and underscores", []
    base, *variants = info.name.split("+")
    if not _NAME.fullmatch(base) or not all(map(re.compile("[a-z0-9_]+").fullmatch, variants)):
        problems.append(Problem("strategy.info.name", rule, info.name, "try my_draft, or my_draft+fast"))
    if not _NAME.fullmatch(info.group):
        problems.append(Problem("strategy.info.group", rule, info.group, "try my_drafts"))
    if "all" in (info.name, info.group):
        problems.append(Problem("strategy.info", "is what draft=all asks for", "all", "choose another name"))
    if problems:
        raise ConfigError(problems)
