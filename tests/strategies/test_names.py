"""A strategy from outside has a name that reports and command lines can hold."""

from __future__ import annotations

import pytest

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_infer.strategies import registry
from ssd_infer.strategies.info import StrategyInfo
from ssd_infer.strategies.ngram.ngram import Ngram


def named(name: str, group: str = "mine") -> type[Ngram]:
    """Return a strategy of that name and group."""
    return type("Mine", (Ngram,), {"info": StrategyInfo(name, "causal", group)})


@pytest.mark.parametrize(
    ("name", "group", "key"),
    [
        ("", "mine", "strategy.info.name"),
        ("my draft", "mine", "strategy.info.name"),
        ("Mine", "mine", "strategy.info.name"),
        ("mine:t1", "mine", "strategy.info.name"),
        ("mine+", "mine", "strategy.info.name"),
        ("mine", "my group", "strategy.info.group"),
        ("mine", "a+b", "strategy.info.group"),
        ("all", "mine", "strategy.info"),
        ("mine", "all", "strategy.info"),
    ],
)
def test_a_name_that_no_report_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, group: str, key: str
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    with pytest.raises(ConfigError) as caught:
        ssd_infer.register(named(name, group))
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize("name", ["mine", "mine_2", "mine+fast", "mine+fast+2"])
def test_other_names_are_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    ssd_infer.register(named(name))
    assert name in registry.infos()
