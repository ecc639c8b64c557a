"""Interleaved timing: order, pairing, failures, time limit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.bench import split_units
from ssd_infer.evaluation.budget import Budget, Deadline
from ssd_infer.evaluation.contenders import Contender, Prompts, Sampling, one_line
from ssd_infer.evaluation.measure import MINIMUM_UNITS, Unit, fitting_tokens, measure
from ssd_infer.evaluation.summary import scoreboard
from ssd_infer.evaluation.tasks import Task

CPU = torch.device("cpu")
UNITS = [Unit(0, "a", [[1]]), Unit(1, "b", [[2]]), Unit(2, "a", [[3]])]
Log = list[tuple[str, int]]


def contender(name: str, log: Log, fails_at: int | None = None, seeds: list[int] | None = None) -> Contender:
    calls = [0]

    def decode(prompts: Prompts, limit: int, seed: int) -> tuple[list[list[int]], Stats | None]:
        calls[0] += 1
        if calls[0] == fails_at:
            raise RuntimeError("out of\n memory")
        log.append((name, prompts[0][0]))
        if seeds is not None:
            seeds.append(seed)
        return [[prompt[0]] * limit for prompt in prompts], None

    return Contender(name, "baseline", decode)


def passed() -> Deadline:
    return Budget(1e-9, iter([0.0, 5.0, *[9.0] * 99]).__next__).deadline(1.0)


def forever() -> Deadline:
    return Budget(0.0).deadline(1.0)


def test_each_round_visits_all_contenders_and_rotates_the_order() -> None:
    log: Log = []
    found = measure([contender(name, log) for name in "xyz"], UNITS, 2, 4, 0, CPU, forever())
    rounds = [log[start : start + 3] for start in range(6, len(log), 3)]
    assert [[name for name, _ in turn] for turn in rounds[:4]] == [
        list("xyz"),
        list("yzx"),
        list("zxy"),
        list("xyz"),
    ]
    assert all(len({prompt for _, prompt in turn}) == 1 for turn in rounds)
    assert found.rounds_done == found.rounds_planned == 6
    assert [len(found.records[name]) for name in "xyz"] == [6, 6, 6]
    assert [part.tokens for part in found.totals("x")] == [8, 8, 8]
    assert len(found.totals("x", "a")) == 2
    assert found.outputs("x")[(1, 2, 0)] == [3, 3, 3, 3]
    assert found.tasks() == ["a", "b"]


def test_contenders_share_the_seed_of_a_round_and_repeats_differ() -> None:
    seeds: list[int] = []
    other: list[int] = []
    measure(
        [contender("x", [], seeds=seeds), contender("y", [], seeds=other)], UNITS, 2, 4, 7, CPU, forever()
    )
    assert seeds == other
    assert len(set(seeds[2:])) == 6


def test_one_failure_drops_one_contender_only() -> None:
    log: Log = []
    contenders = [contender("x", log), contender("warm", log, fails_at=1), contender("late", log, fails_at=4)]
    found = measure(contenders, UNITS, 1, 4, 0, CPU, forever())
    assert [item.failure for item in contenders] == [None, *["RuntimeError: out of memory"] * 2]
    assert list(found.records) == ["x"]
    assert len(found.records["x"]) == 3


def test_time_limit_ends_on_a_complete_round() -> None:
    log: Log = []
    found = measure([contender("x", log), contender("y", log)], UNITS, 5, 4, 0, CPU, passed())
    assert found.rounds_done == MINIMUM_UNITS < found.rounds_planned
    assert len(found.records["x"]) == len(found.records["y"]) == MINIMUM_UNITS


@pytest.mark.parametrize(
    ("wanted", "warm", "left", "tokens"),
    [
        (128, 1.2, math.inf, 128),
        (128, 1.2, 60.0, 128),
        (128, 1.2, 12.0, 60),
        (128, 1.2, 0.0, 16),
        (8, 1.0, 0.0, 8),
    ],
)
def test_tokens_are_cut_to_what_the_time_limit_affords(
    wanted: int, warm: float, left: float, tokens: int
) -> None:
    assert fitting_tokens(wanted, warm, left) == tokens


def test_fastest_baseline_is_the_denominator() -> None:
    log: Log = []
    contenders = [contender("ssd_plain", log), contender("transformers_generate", log)]
    found = measure(contenders, UNITS, 1, 4, 0, CPU, forever())
    for record, seconds in zip(
        found.records["ssd_plain"] + found.records["transformers_generate"],
        [2.0] * 3 + [1.0] * 3,
        strict=True,
    ):
        record.decoded.seconds = seconds
    board = scoreboard(found, contenders, Sampling(), 0)
    assert board is not None
    assert board.fastest == "transformers_generate"
    assert board.ratio("ssd_plain").value == 0.5
    contenders[0].failure = contenders[1].failure = "x"
    assert scoreboard(found, contenders, Sampling(), 0) is None


def test_units_take_turns_between_tasks() -> None:
    units = split_units([Task("a", [[1], [2], [3]]), Task("b", [[4]])], batch_size=2)
    assert [(unit.task, unit.prompts) for unit in units] == [("a", [[1], [2]]), ("b", [[4]]), ("a", [[3]])]
    assert [unit.index for unit in units] == [0, 1, 2]


def test_reason_is_one_line() -> None:
    kinds: list[Callable[[], BaseException]] = [lambda: ValueError("a\n b"), KeyError]
    assert [one_line(kind()) for kind in kinds] == ["ValueError: a b", "KeyError"]
