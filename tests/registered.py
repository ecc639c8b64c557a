"""Change which strategies are known while a test runs."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from ssd_infer.strategies import registry
from ssd_infer.strategies.base import Strategy


def know_only(
    patch: pytest.MonkeyPatch, names: Collection[str] | None = None, *classes: type[Strategy]
) -> None:
    """Let only the causal strategies `names` (None: all there are) and `classes` be known."""
    before, get = registry.infos(), registry.get
    own = {item.info.name: item for item in classes}
    kept = {
        name: info for name, info in before.items() if info.kind != "causal" or names is None or name in names
    }
    kept |= {name: item.info for name, item in own.items()}
    ordered = dict(sorted(kept.items(), key=lambda pair: (pair[1].order, pair[0])))
    patch.setattr(registry, "infos", lambda: ordered)
    patch.setattr(registry, "get", lambda name: own[name] if name in own else get(name))
