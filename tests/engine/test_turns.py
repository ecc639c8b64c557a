"""Streams of several turns: exact in every turn, with drafters whose state goes on, and traced round by round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.target import Target
from ssd_infer.engine.turns import decode_turns
from ssd_infer.strategies import registry as drafts
from tests.conftest import ModelFactory
from tests.engine.test_exactness import prompts
from tests.strategies.skip_layers.test_skip_swift import FREELY, prepare

PER_TURN = 14
SPARSE: dict[str, Any] = {
    "selector": "pillar",
    "ratio": 0.5,
    "min_budget": 4,
    "gamma": 3,
    "cold_start": "prompt",
}
WAYS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("skip_set", {"skip_attention": [1, 2], "skip_mlp": [3], "gamma": 4, "confidence": 0.0}),
    ("skip_set", {"skip_attention": [1], "skip_mlp": [1], "gamma": 4, "confidence": 0.0, "guard": 1.0}),
    ("swift", FREELY),
    ("early_exit+del", {"guard": 0.5}),
    ("early_exit", {"exit_layer": 2, "gamma": 3, "confidence": 0.0}),
    ("early_exit+ngram", {"exit_layer": 2, "gamma": 3, "confidence": 0.0}),
    ("ngram", {}),
    ("sparse_attention", SPARSE | {"phases": "lockstep"}),
    ("sparse_attention", SPARSE | {"phases": "balanced"}),
]


def converse(
    model: Any, turns: list[list[int]], draft: str | None, raw: dict[str, Any]
) -> tuple[list[int], Stats]:
    target = Target.of(model)
    strategy = None if draft is None else drafts.get(draft)
    params = None if strategy is None else strategy.parse(raw, target)
    sampler = Sampler(SamplingParams(), target.device, seed=0)
    return decode_turns(target, turns, strategy, params, PER_TURN, sampler)


def continuation(model: Any, text: list[int], new: int) -> list[int]:
    """Return transformers' greedy continuation; without a mask it would take token 0 of the text for padding."""
    ids = torch.tensor([text])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, pad_token_id=0)
    return out[0, len(text) :].tolist()


@pytest.mark.parametrize(("draft", "raw"), WAYS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_turn_is_what_the_model_says_to_all_text_before_it(
    tiny_model: ModelFactory, draft: str | None, raw: dict[str, Any], seed: int
) -> None:
    model = prepare(tiny_model(layers=5), 5)
    texts = [row.tolist() for row in prompts(3, 97, seed=seed)]
    said, stats = converse(model, texts, draft, raw)
    before, expected = list(texts[0]), list[int]()
    for turn in range(3):
        spoken = continuation(model, before, PER_TURN)
        more = texts[turn + 1] if turn < 2 else []
        expected += spoken + more
        before += spoken + more
    assert said == expected
    assert stats.rows[0].emitted == 3 * PER_TURN
    if draft is not None:
        assert stats.total.drafted > 0


def test_one_turn_is_plain_generation(tiny_model: ModelFactory) -> None:
    model, text = tiny_model(), prompts(1, 97)[0].tolist()
    assert converse(model, [text], None, {})[0] == continuation(model, text, PER_TURN)


def test_the_trace_says_where_what_was_accepted(tiny_model: ModelFactory) -> None:
    model = prepare(tiny_model(layers=5), 5)
    _, stats = converse(model, [row.tolist() for row in prompts(2, 97)], *WAYS[1])
    row = stats.rows[0]
    assert len(row.trace) == row.rounds
    assert sum(drafted for _, drafted, _ in row.trace) == row.drafted
    assert sum(accepted for _, _, accepted in row.trace) == row.accepted
    positions = [emitted for emitted, _, _ in row.trace]
    assert positions == sorted(set(positions))
    assert stats.total.trace == []
