"""Objects that are named before they are imported: by `module:NAME`, or by an entry point of an installed package."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from ssd_infer.errors import ConfigError, Problem


def imported(place: str) -> Any:
    """Return the object at `place`, `module:NAME`, importing its module."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def loaded(point: EntryPoint, key: str) -> Any:
    """Return what an entry point names; raises ConfigError under `key` where its package cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        rule = f"comes from {point.value}, which cannot be imported ({type(error).__name__}: {error})"
        raise ConfigError([Problem(key, rule, point.name, "repair or uninstall that package")]) from error


def named_once(points: Iterable[EntryPoint], key: str) -> dict[str, EntryPoint]:
    """Return entry points by name; raises ConfigError under `key` where two distributions bring one name."""
    found: dict[str, EntryPoint] = {}
    for point in points:
        first = found.setdefault(point.name, point)
        if (makers := sorted({_maker(first), _maker(point)}))[1:]:
            rule = f"is the entry point of two installed packages, {' and '.join(makers)}"
            raise ConfigError([Problem(key, rule, point.name, "uninstall one of them")])
    return found


def _maker(point: EntryPoint) -> str:
    return "one without a name" if point.dist is None else point.dist.name


def check_same_name(point: EntryPoint, key: str, what: str, name: str) -> None:
    """Raise ConfigError under `key` unless `what` an entry point names calls itself as the entry point does."""
    if name != point.name:
        rule = f"is the entry point of a {what} that calls itself {name!r}"
        raise ConfigError([Problem(key, rule, point.name, "give both one name")])
