"""Two installed packages that bring one name are named, both, whatever it is the name of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.checkpoint import families
from ssd_infer.errors import ConfigError
from ssd_infer.strategies import registry as strategies
from ssd_train.recipes import registry as recipes

CACHES: tuple[Any, ...] = (strategies._installed, families._family_points, recipes.infos)
NAMED: dict[str, tuple[str, Callable[[], object]]] = {
    "ssd_infer.strategies": ("draft", strategies.infos),
    "ssd_infer.families": ("family", families.family_names),
    "ssd_train.recipes": ("recipe", recipes.infos),
}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def install(folder: Path, package: str, group: str) -> None:
    """Write what a package called `package` leaves behind when it is installed into `folder`."""
    place = folder / f"{package}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    (place / "entry_points.txt").write_text(f"[{group}]\ntwice = {package}.module:THING\n", "utf-8")


@pytest.mark.parametrize("group", NAMED)
def test_both_packages_are_named(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, ask = NAMED[group]
    install(tmp_path, "first", group)
    install(tmp_path, "second", group)
    monkeypatch.syspath_prepend(tmp_path)
    said = f"^{key}: is the entry point of two installed packages, first and second .*'twice'.*uninstall one of them"
    with pytest.raises(ConfigError, match=said):
        ask()


def test_one_package_found_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("here", "there"):
        install(tmp_path / place, "first", "ssd_infer.strategies")
        monkeypatch.syspath_prepend(tmp_path / place)
    assert strategies.installed() == ["twice"]
