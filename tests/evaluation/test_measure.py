"""Interleaved timing: order, pairing, failures, time limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssd_infer.corpus import Task
from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.bench import split_units
from ssd_infer.evaluation.bootstrap import Ratio
from ssd_infer.evaluation.contenders import Contender, Decoded, Kind, Prompts, one_line
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.measure import (
    MINIMUM_UNITS,
    Measurements,
    Record,
    Unit,
    fitting_tokens,
    measure,
)
from ssd_infer.evaluation.setting import stand_in
from ssd_infer.evaluation.summary import (
    baseline_row,
    measured_noise,
    scoreboard,
    share_plain,
    strategy_row,
)
from ssd_infer.evaluation.verdict import verdict
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget, Deadline

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
    found = measure([contender(name, log) for name in "xyz"], UNITS, 2, 4, 0, CPU, forever(), blocks=1)
    rounds = [log[start : start + 3] for start in range(6, len(log), 3)]
    first = [name for name, _ in rounds[0]]
    assert [[name for name, _ in turn] for turn in rounds[:4]] == [
        first,
        first[1:] + first[:1],
        first[2:] + first[:2],
        first,
    ]
    assert all(len({prompt for _, prompt in turn}) == 1 for turn in rounds)
    assert found.rounds_done == found.rounds_planned == 6
    assert [len(found.records[name]) for name in "xyz"] == [6, 6, 6]
    assert [part.tokens for part in found.totals("x")] == [8, 8, 8]
    assert [part.prompt for part in found.totals("x")] == [0, 1, 2]
    assert len(found.totals("x", "a")) == 2
    assert found.outputs("x")[(1, 2, 0)] == [3, 3, 3, 3]
    assert found.tasks() == ["a", "b"]


def test_contenders_share_the_seed_of_a_round_and_repeats_differ() -> None:
    seeds: list[int] = []
    other: list[int] = []
    pair = [contender("x", [], seeds=seeds), contender("y", [], seeds=other)]
    measure(pair, UNITS, 2, 4, 7, CPU, forever(), blocks=1)
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
        (128, 1.2, 51.2, 128),
        (128, 1.2, 24.0, 60),
        (128, 1.2, 12.0, 32),
        (128, 1.2, 4.0, 20),
        (128, 1.2, 0.0, 16),
        (8, 1.0, 0.0, 8),
    ],
)
def test_tokens_are_cut_to_what_the_time_limit_affords(
    wanted: int, warm: float, left: float, tokens: int
) -> None:
    assert fitting_tokens(wanted, warm, left) == tokens


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def slow(name: str, clock: Clock, seconds: float, log: Log) -> Contender:
    """Return a contender whose token takes `seconds` of the fake clock."""

    def decode(prompts: Prompts, limit: int, seed: int) -> tuple[list[list[int]], Stats | None]:
        clock.now += seconds * limit
        log.append((name, prompts[0][0]))
        return [[1] * limit], None

    return Contender(name, "baseline", decode)


MANY = [Unit(index, "a", [[index]]) for index in range(40)]


def timed_blocks(minutes: float, repeats: int = 1) -> tuple[list[tuple[int, int]], Log, float]:
    """Measure two contenders under a fake clock; return (block, unit) of one's records, all calls, and the time."""
    clock, log = Clock(), Log()
    deadline = Budget(minutes, clock).deadline(1.0)
    pair = [slow(name, clock, 0.5, log) for name in "xy"]
    found = measure(pair, MANY, repeats, 16, 3, CPU, deadline)
    return [(record.block, record.unit) for record in found.records["x"]], log, clock.now


def test_a_measurement_is_cut_into_blocks_with_an_order_and_a_warm_up_of_their_own() -> None:
    where, log, _ = timed_blocks(0.0)
    blocks = [block for block, _ in where]
    assert sorted(set(blocks)) == [0, 1, 2, 3, 4]
    assert blocks == sorted(blocks)
    assert min(map(blocks.count, range(5))) >= 2
    assert len(log) == 5 * 4 + 40 * 2
    assert timed_blocks(0.0)[:2] == (where, log)


def test_where_time_is_short_blocks_follow_the_clock_and_every_round_is_another_prompt() -> None:
    where, _, spent = timed_blocks(6.0)
    assert sorted({block for block, _ in where}) == [0, 1, 2, 3, 4]
    assert [unit for _, unit in where] == list(range(len(where)))
    assert 0.9 * 360 <= spent <= 1.1 * 360


def test_units_all_come_before_the_first_repeat() -> None:
    where, _, _ = timed_blocks(0.0, repeats=2)
    assert [unit for _, unit in where] == [*range(40), *range(40)]


def test_what_stands_for_a_baseline_is_never_run_and_shares_its_records() -> None:
    log: Log = []
    plain, fallen = contender("ssd_plain", log), contender("swift", log)
    fallen.kind, fallen.plain = "strategy", True
    stand_in([plain, fallen])
    found = measure([plain, fallen], UNITS, 1, 4, 0, CPU, forever())
    assert {name for name, _ in log} == {"ssd_plain"}
    assert list(found.records) == ["ssd_plain"]
    assert found.of("swift") == found.of("ssd_plain")
    assert found.outputs("swift") == found.outputs("ssd_plain") != {}


def test_a_contender_that_fails_between_blocks_leaves_no_records_that_do_not_pair() -> None:
    log: Log = []
    bad = contender("bad", log, fails_at=2 + 8 + 1)
    found = measure([contender("x", log), bad], MANY, 1, 4, 0, CPU, forever())
    assert bad.failure == "RuntimeError: out of memory"
    assert list(found.records) == ["x"]
    assert len(found.records["x"]) == 40


def fixed(seconds: float, drafted: int = 0, accepted: int = 0) -> Decoded:
    stats = Stats.empty(1)
    stats.rows[0].count(drafted, accepted, 4)
    stats.finish()
    stats.total.forwards, stats.total.seconds = (
        {"target": 2, "draft": drafted},
        {"prefill": 0.1, "draft": 0.1 * drafted, "verify": seconds},
    )
    return Decoded([[1, 2, 3, 4]], seconds, stats)


def held(times: dict[str, list[float]], drafted: dict[str, int]) -> tuple[Measurements, list[Contender]]:
    """Return measurements in which contender `name` took `times[name][i]` seconds on prompt i, and the contenders."""
    kinds: dict[str, Kind] = {"ssd_plain": "baseline", "ssd_plain:again": "again"}
    contenders = [contender(name, []) for name in times]
    found = Measurements(rounds_done=3, rounds_planned=3, blocks=1, new_tokens=4)
    for item in contenders:
        item.kind = kinds.get(item.name, "strategy")
        item.draft = item.name
        count = drafted.get(item.name, 0)
        found.records[item.name] = [
            Record(unit, "a", 0, fixed(seconds, count, count // 2))
            for unit, seconds in enumerate(times[item.name])
        ]
    share_plain(found, contenders)
    return found, contenders


def row_of(name: str, found: Measurements, contenders: list[Contender]) -> dict[str, Any]:
    board = scoreboard(found, contenders, Sampling(), 0)
    assert board is not None
    item = next(item for item in contenders if item.name == name)
    return strategy_row(item, board, LosslessResult("pass", "equal"), {})


PLAIN = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95]


def test_a_strategy_that_drafted_nothing_is_plain_whatever_its_clock_says() -> None:
    lucky = [seconds / 1.11 for seconds in PLAIN]
    found, contenders = held({"ssd_plain": PLAIN, "ssd_plain:again": PLAIN, "swift": lucky}, {})
    row = row_of("swift", found, contenders)
    assert row["speed"] == {
        "tokens_per_second": pytest.approx(4.0),
        "speedup": 1.0,
        "ci95": None,
        "predicted_speedup": None,
        "against": "ssd_plain",
    }
    assert row["extra"]["fell_back_to_plain"] is True
    assert row["extra"]["shares_samples_of"] == "ssd_plain"
    assert row["extra"]["undrafted"]["speedup"] == pytest.approx(1.11)
    assert "drafted nothing" in row["reason"]
    assert row["per_task"][0]["speedup"] == 1.0
    assert verdict([row], [], [])["best_strategy"] is None


def test_no_interval_is_narrower_than_what_plain_decoding_shows_against_itself() -> None:
    again = [seconds * factor for seconds, factor in zip(PLAIN, [1.1, 0.9] * 3, strict=True)]
    fast = [seconds / 1.05 for seconds in PLAIN]
    found, contenders = held(
        {"ssd_plain": PLAIN, "ssd_plain:again": again, "early_exit": fast}, {"early_exit": 4}
    )
    board = scoreboard(found, contenders, Sampling(), 0)
    assert board is not None
    assert board.noise is not None
    assert board.noise > 0.05
    bare = board.against("early_exit", "ssd_plain").ci95
    assert bare == pytest.approx([1.05, 1.05])
    row = row_of("early_exit", found, contenders)
    low, high = row["speed"]["ci95"]
    assert low <= 1.05 / (1 + board.noise) + 1e-9
    assert high >= 1.05 * (1 + board.noise) - 1e-9
    assert low < 1.0
    assert verdict([row], [], [])["best_strategy"] is None
    listed = baseline_row(contenders[1], board)["extra"]["again"]
    assert (listed["of"], listed["noise"]) == ("ssd_plain", board.noise)


@pytest.mark.parametrize(
    ("ci95", "noise"), [([0.98, 1.01], 1 / 0.98 - 1), ([0.25, 1.5], 3.0), ([1.02, 1.1], 0.1), (None, None)]
)
def test_noise_is_a_factor_so_that_no_interval_goes_below_zero(
    ci95: list[float] | None, noise: float | None
) -> None:
    found = measured_noise(Ratio(1.0, ci95))
    assert found == pytest.approx(noise) if noise else found is None
    low, high = Ratio(1.2, [1.1, 1.3]).at_least(noise or 0.0).ci95 or [0.0, 0.0]
    assert 0 < low <= min(1.1, 1.2 / (1 + (noise or 0.0)))
    assert high >= 1.2 * (1 + (noise or 0.0))


def test_a_row_wider_than_ten_percent_is_too_short_to_tell() -> None:
    wild = [seconds * factor for seconds, factor in zip(PLAIN, [0.3, 0.9] * 3, strict=True)]
    calm = [seconds / 1.5 for seconds in PLAIN]
    found, contenders = held(
        {"ssd_plain": PLAIN, "ssd_plain:again": PLAIN, "swift": wild, "early_exit": calm},
        {"swift": 4, "early_exit": 4},
    )
    assert row_of("swift", found, contenders)["extra"]["too_short_to_tell"] is True
    assert row_of("early_exit", found, contenders)["extra"]["too_short_to_tell"] is False
    assert verdict([row_of("early_exit", found, contenders)], [], [])["best_strategy"] == "early_exit"


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
