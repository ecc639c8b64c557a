"""Draft strategies, one file each; a file added here is found without being listed anywhere."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.base import Drafter


@cache
def registry() -> dict[str, type[Drafter]]:
    """Return every strategy by name: the concrete Drafter classes of the modules in this package."""
    found: dict[str, type[Drafter]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for item in vars(module).values():
            if (
                isinstance(item, type)
                and issubclass(item, Drafter)
                and item.__module__ == module.__name__
                and hasattr(item, "name")  # shared bases have none
            ):
                found[item.name] = item
    return dict(sorted(found.items()))


def get(name: str) -> type[Drafter]:
    """Return the strategy called `name`; raises ConfigError listing the names there are."""
    known = registry()
    if name not in known:
        raise ConfigError(
            [Problem("draft", "must name a draft strategy", name, f"choose from {', '.join(known)}")]
        )
    return known[name]
