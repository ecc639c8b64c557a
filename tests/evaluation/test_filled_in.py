"""What an evaluation gives parameters that nobody gave."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.causal.causal_kind import _peers
from ssd_infer.evaluation.strategies import filled_in, own_peers, select_candidates
from ssd_infer.strategies import registry
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.early_exit.exit_params import EarlyExitParams
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning import tree_costs
from ssd_infer.tuning.costs import Curve
from tests.conftest import build_model

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 8, 9, 8, 9, 8]]


def test_what_is_given_stays_and_an_open_search_is_bounded() -> None:
    assert filled_in(registry.get("ngram"), {}, 3.0) == {"tree": "auto"}
    assert filled_in(registry.get("ngram"), {"tree": 4, "gamma": 2}, 3.0) == {"tree": 4, "gamma": 2}
    assert filled_in(registry.get("skip_set+bayes"), {}, 3.0) == {"search_seconds": 3.0}
    assert filled_in(registry.get("skip_set+bayes"), {"search_seconds": 9.0}, 3.0) == {"search_seconds": 9.0}


def test_copies_are_measured_as_trees_whether_asked_for_or_not() -> None:
    model = build_model()
    target = Target.of(model)
    (peer,) = own_peers(model, target, Sampling(), "all")
    found = select_candidates(model, target, "ngram", {}, Sampling(), PROMPTS, batch_size=2)
    (asked,) = [one for one in found.contenders if one.name == "ngram"]
    assert peer.params["tree"] == asked.params["tree"] == "auto"
    wanted = model.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=9, do_sample=False)[0, 8:].tolist()
    for one in (peer, asked):
        tokens, _ = one.decode(PROMPTS[:1], 9, 0)
        assert tokens[0] == wanted[: len(tokens[0])]
        assert tokens[0]


def test_what_auto_goes_by_is_measured_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model()
    target = Target.of(model)
    (peer,) = own_peers(model, target, Sampling(), "all")
    measured: list[float] = []

    def slow(*given: Any, **named: Any) -> Curve:
        time.sleep(0.5)
        measured.append(time.perf_counter())
        return Curve((1, 33), (1.0, 1.0))

    monkeypatch.setattr(tree_costs, "measure_verify", slow)
    decoded = peer.run(PROMPTS, 9, 0, torch.device("cpu"))
    assert len(measured) == 1
    assert decoded.seconds < 0.5
    assert peer.run(PROMPTS, 9, 0, torch.device("cpu")).tokens == decoded.tokens
    assert len(measured) == 1


@pytest.mark.parametrize(("predicted", "timed"), [(0.8, False), (1.4, True)])
def test_early_exit_of_transformers_is_timed_where_an_exit_pays(
    monkeypatch: pytest.MonkeyPatch, predicted: float, timed: bool
) -> None:
    model = build_model()
    target = Target.of(model)
    chosen = Resolved(EarlyExitParams(exit_layer=1, gamma=2), "", predicted)
    monkeypatch.setattr(EarlyExit, "resolve", classmethod(lambda cls, *given: chosen))
    found = select_candidates(model, target, "early_exit", {}, Sampling(), PROMPTS)
    peers = _peers(SimpleNamespace(model=model, target=target, settings=EvalSettings()), Sampling(), found)  # type: ignore[arg-type]
    assistant = next(peer for peer in peers if peer.name == "assistant_early_exit")
    assert (assistant.failure is None) == timed
    assert assistant.params == {"assistant_early_exit": 1}
