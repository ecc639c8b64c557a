"""The price of going back is measured where a state does go back, and in turns with rounds where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_infer.engine.recurrent_states import LayerStates
from tests.engine.causal_families import needs_states
from tests.scripts.load import load_script


@needs_states
def test_each_rejection_is_gone_back_from_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script: Any = load_script("bench_rollback")
    monkeypatch.setattr(script, "WARM", 0)
    counts, again = [], LayerStates._rerun

    def rerun(states: LayerStates, rows: list[int], count: int, mixer: Any) -> None:
        counts.append(count)
        again(states, rows, count, mixer)

    target = script.Target.of(script.model_of("LFM2", 128, 4))
    monkeypatch.setattr(script.Target, "of", lambda model: target)
    monkeypatch.setattr(LayerStates, "_rerun", rerun)
    prices = script.measure("LFM2", rounds=2, gamma=4, width=128, layers=4)
    assert counts == [count for _ in range(2) for accepted in (0, 2, 3) for count in 3 * [accepted + 1]]
    assert len(prices.plain) == len(prices.free) == 2
    assert {accepted: len(late) for accepted, late in prices.after.items()} == {0: 2, 2: 2, 3: 2}
    assert prices.row("LFM2").count("|") == 7
