"""SWIFT: exact in every family, lawful, alone with its stream, and honest about what searching costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers.episode import Episode
from ssd_infer.strategies.skip_layers.online import AcceptanceDrop
from ssd_infer.strategies.skip_layers.swift import EXPECTED_TOKENS, Swift, _Budget
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import remember_costs
from tests.conftest import FAMILIES, ModelFactory, build_model
from tests.engine import test_sampling_law as sampling
from tests.engine.test_exactness import prompts, reference
from tests.strategies.skip_layers.test_dp import flat_costs

NEW = 32
FREELY: dict[str, Any] = {"share": 1.0, "fruitless": 1.0, "max_trials": 12, "worth": 1.0}
"""Search time never runs out, for the pretended costs below are enormous, and the smallest promise is drafted on."""


def prepare(model: Any, layers: int, step: float = 0.0, do_sample: bool = False) -> Any:
    """Weaken the middle MLPs, and pretend that drafting is cheap, verifying flat, and time plentiful."""
    with torch.no_grad():
        for layer in model.model.layers[1:-1]:
            after = getattr(layer, "post_feedforward_layernorm", None)  # undoes a smaller projection
            (layer.mlp.down_proj if after is None else after).weight.mul_(0.2)
    for batch in (1, 2, 8, 64):
        remember_costs(Target.of(model), flat_costs(layers, 10.0, 10.0, step), do_sample, batch)
    return model


def swift(model: Any, rows: Any, new: int = NEW, **options: Any) -> Any:
    params = FREELY | options.pop("params", {})
    return ssd_infer.generate(model, rows, draft="swift", draft_params=params, max_new_tokens=new, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_identical_alone_and_in_a_ragged_batch(tiny_model: ModelFactory, family: str) -> None:
    changes = {"sliding_window": 16} if family == "mistral" else {}
    model = prepare(tiny_model(family, layers=5, vocab_size=29, initializer_range=0.1, **changes), 5)
    rows = prompts(8, 29)
    expected = reference(model, rows, NEW)
    batch = swift(model, rows)
    assert batch.sequences == expected
    assert batch.stats.total.drafted > 0
    for row, text in zip(rows[:2], expected, strict=False):
        assert swift(model, [row], params={"window": 8, "interval": 2}).sequences == [text]


def test_rows_that_end_early_leave_the_search(tiny_model: ModelFactory) -> None:
    model = prepare(tiny_model(layers=5, vocab_size=13), 5)
    rows = prompts(8, 13, seed=3)
    free = reference(model, rows, NEW)
    eos = max(range(2, 13), key=lambda token: sum(token in text[2:-2] for text in free))
    expected = reference(model, rows, NEW, eos=eos)
    assert len({len(text) for text in expected}) > 2
    assert swift(model, rows, eos_token_id=eos).sequences == expected


@pytest.mark.parametrize("settings", sampling.SETTINGS)
def test_follows_the_enumerated_law(settings: dict[str, Any]) -> None:
    model = build_model(layers=3, vocab_size=sampling.VOCAB, initializer_range=0.12)
    prepare(model, 3, do_sample=True)
    params = FREELY | {"ratio": 1.0}
    out = swift(
        model, [sampling.PROMPT] * 64, sampling.NEW, params=params, do_sample=True, seed=1, **settings
    )
    assert 0 < out.stats.total.accepted < out.stats.total.drafted
    assert sampling.p_value(model, settings, "swift", params) > 1e-3


def _facts(out: Any) -> dict[str, Any]:
    return {key: value for key, value in out.stats.report.items() if key != "search_seconds"}


def test_nothing_survives_a_stream(tiny_model: ModelFactory) -> None:
    """The same stream searches the same way whatever was decoded before it."""
    model = prepare(tiny_model(layers=5), 5)
    first, other = prompts(2, 97)
    once = swift(model, [first])
    swift(model, [other])
    again = swift(model, [first])
    assert _facts(once) == _facts(again)
    assert once.stats.report["trials"] > 1


def test_interleaved_streams_do_not_interact(tiny_model: ModelFactory) -> None:
    model = prepare(tiny_model(layers=5), 5)
    rows = prompts(2, 97)
    alone = [swift(model, [row]) for row in rows]
    inner: list[Any] = []

    def nested(_row: int, _tokens: list[int]) -> None:
        if not inner:
            inner.append(swift(model, rows[1:]))

    outer = swift(model, rows[:1], streamer=nested)
    assert [_facts(outer), _facts(inner[0])] == [_facts(out) for out in alone]
    assert outer.sequences + inner[0].sequences == reference(model, rows, NEW)


def test_search_time_is_part_of_draft_time(tiny_model: ModelFactory) -> None:
    out = swift(prepare(tiny_model(layers=5), 5), prompts(2, 97))
    seconds = out.stats.total.seconds
    assert 0 < seconds["search"] < seconds["draft"]
    assert seconds["search"] == out.stats.report["search_seconds"]


def test_no_time_no_search_no_drafts(tiny_model: ModelFactory) -> None:
    model, rows = prepare(tiny_model(layers=5), 5), prompts(2, 97)
    out = swift(model, rows, params={"share": 0.0})
    assert (out.stats.total.drafted, out.stats.report["trials"]) == (0, 0)
    assert "too short for a search" in out.stats.report["note"]
    assert out.sequences == reference(model, rows, NEW)


def test_a_draft_without_gain_is_not_drafted(tiny_model: ModelFactory) -> None:
    model = prepare(tiny_model(layers=5), 5, step=1e4)  # skipping saves next to nothing
    out = swift(model, prompts(2, 97), params={"max_trials": 6, "gamma": 1, "ratio": 0.9})
    assert (out.stats.total.drafted, out.stats.report["trials"]) == (0, 6)
    assert "no skip set tried is expected to gain" in out.stats.report["note"]


def _promise_too_much(self: Episode, _skips: SkipSet) -> bool:
    """Adopt the worst set there is, and promise the moon."""
    layers = range(1, self.proposer.num_layers - 1)
    self.best, self.trials = SkipSet.of(layers, layers), self.trials + 1
    self.prediction = Prediction(4, 0.0, 1.0, 5.0, 4.0, 0.1, 1.0, 3.0)
    return self.trials == 1


def test_a_losing_draft_switches_itself_off(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Episode, "score", _promise_too_much)
    model, rows = prepare(tiny_model(layers=5), 5), prompts(1, 97)
    out = swift(model, rows, 80)
    assert out.stats.report["switched_off"] >= 1
    assert out.stats.total.rounds > out.stats.total.drafted / 4 + 20  # many rounds drafted nothing
    assert out.sequences == reference(model, rows, 80)


def test_a_losing_draft_is_switched_off_even_without_time_to_search_again(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance fell, a search was begun, but no candidate can be afforded: the old set is still watched."""
    monkeypatch.setattr(Episode, "score", _promise_too_much)
    monkeypatch.setattr(AcceptanceDrop, "learn", lambda *_: True)
    original = Swift._try
    monkeypatch.setattr(Swift, "_try", lambda self: self.gain is None and original(self))
    model, rows = prepare(tiny_model(layers=5), 5), prompts(1, 97)
    out = swift(model, rows, 60)
    assert out.stats.report["episodes"] > 1
    assert out.stats.report["switched_off"] >= 1
    assert out.sequences == reference(model, rows, 60)


def test_searching_does_not_count_on_a_stream_that_may_end_early(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []

    def affords(_self: Any, _seconds: float, _share: float, rest: float) -> bool:
        left.append(rest)
        return False

    monkeypatch.setattr(_Budget, "affords", affords)
    model = prepare(tiny_model(layers=5, initializer_range=0.1), 5)
    # The stream is so long that passes in its middle are measured for themselves.
    remember_costs(Target.of(model), flat_costs(5, 10.0, 10.0, 0.0), context=EXPECTED_TOKENS // 2 + 50)
    swift(model, prompts(1, 97), EXPECTED_TOKENS + 90)
    assert left[0] == left[1] == EXPECTED_TOKENS * flat_costs(5, 10.0, 10.0, 0.0).whole.plain
    assert left[-1] < left[0]


def test_an_exception_inside_a_search_leaves_the_model_alone(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Episode, _skips: SkipSet) -> bool:
        raise RuntimeError("searching broke")

    model, rows = prepare(tiny_model(layers=5), 5), prompts(1, 97)
    before, expected = model.config.to_dict(), reference(model, rows, 8)
    with monkeypatch.context() as patch:
        patch.setattr(Episode, "score", broken)
        with pytest.raises(RuntimeError, match="searching broke"):
            swift(model, rows)
    assert model.config.to_dict() == before
    assert reference(model, rows, 8) == expected


def test_a_small_promise_is_not_drafted_on(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(self: Episode, skips: SkipSet) -> bool:
        self.best, self.trials = skips, self.trials + 1
        self.prediction = Prediction(4, 0.0, 0.5, 3.0, 4.0, 0.3, 1.0, 1.05)
        return True

    monkeypatch.setattr(Episode, "score", promise)
    model, rows = prepare(tiny_model(layers=5), 5), prompts(1, 97)
    assert swift(model, rows, params={"worth": 1.1}).stats.total.drafted == 0
    assert swift(model, rows, params={"worth": 1.0}).stats.total.drafted > 0


def test_two_layers_leave_nothing_to_skip(tiny_model: ModelFactory) -> None:
    model = tiny_model(layers=2)
    assert "first and last layer" in (Swift.applicable(Target.of(model)) or "")
