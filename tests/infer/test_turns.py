"""Streams of several turns: exact in every turn, with drafters whose state goes on, and traced round by round."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_infer import drafts
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.engine.turns import Conversation, decode_turns
from tests.conftest import ModelFactory
from tests.infer.test_exactness import prompts, reference
from tests.infer.test_skip_swift import FREELY, prepare

PER_TURN = 14
WAYS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("skip_set", {"skip_attention": [1, 2], "skip_mlp": [3], "gamma": 4, "confidence": 0.0}),
    ("skip_set", {"skip_attention": [1], "skip_mlp": [1], "gamma": 4, "confidence": 0.0, "guard": 1.0}),
    ("swift", FREELY),
    ("early_exit+del", {"guard": 0.5}),
    ("early_exit", {"exit_layer": 2, "gamma": 3, "confidence": 0.0}),
]


def converse(
    model: Any, turns: list[list[list[int]]], draft: str | None, raw: dict[str, Any]
) -> Conversation:
    target = Target.of(model)
    strategy = None if draft is None else drafts.get(draft)
    params = None if strategy is None else strategy.parse(raw, target)
    sampler = Sampler(SamplingParams(), target.device, seed=0)
    return decode_turns(target, turns, strategy, params, PER_TURN, sampler)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("draft", "raw"), WAYS)
def test_every_turn_is_what_the_model_says_to_all_text_before_it(
    tiny_model: ModelFactory, draft: str | None, raw: dict[str, Any], batch: int
) -> None:
    model = prepare(tiny_model(layers=5), 5)
    rows = [[row.tolist() for row in prompts(batch, 97, seed=seed)] for seed in (0, 1, 2)]
    told = converse(model, rows, draft, raw)
    for row in range(batch):
        said, text = told.tokens[row], list(rows[0][row])
        starts = [0, *told.starts[row], told.stats.rows[row].emitted]
        at = 0
        for turn in range(3):
            spoken = starts[turn + 1] - starts[turn]
            assert spoken >= PER_TURN or turn == 2
            expected = reference(model, [text], spoken)[0]
            assert said[at : at + spoken] == expected, (row, turn)
            at += spoken
            text += expected
            if turn < 2:
                extra = rows[turn + 1][row]
                assert said[at : at + len(extra)] == extra
                at += len(extra)
                text += extra
        assert at == len(said)
        assert told.stats.rows[row].emitted == 3 * PER_TURN
    if draft is not None:
        assert told.stats.total.drafted > 0


def test_the_trace_says_where_what_was_accepted(tiny_model: ModelFactory) -> None:
    model = prepare(tiny_model(layers=5), 5)
    rows = [[row.tolist() for row in prompts(2, 97, seed=seed)] for seed in (0, 1)]
    told = converse(model, rows, *WAYS[1])
    for stats in told.stats.rows:
        assert len(stats.trace) == stats.rounds
        assert sum(drafted for _, drafted, _ in stats.trace) == stats.drafted
        assert sum(accepted for _, _, accepted in stats.trace) == stats.accepted
        positions = [emitted for emitted, _, _ in stats.trace]
        assert positions == sorted(set(positions))
    assert told.stats.total.trace == []
