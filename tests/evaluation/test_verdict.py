"""The conclusion of a report: who wins, and what is warned of."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_infer.evaluation.verdict import verdict
from ssd_infer.report.rows import UNRESOLVED, headline
from tests.report.sample import absent_row, measured_row, sample_report


def row(
    name: str, speedup: float, distinct: float = 0.9, lossless: str = "pass", **changes: Any
) -> dict[str, Any]:
    made = measured_row(name, speedup, 0.6, **changes)
    made["extra"] = {"repetition": {"distinct_3": distinct}, "draft": name.split(":")[0]}
    made["lossless"]["verdict"] = lossless
    return made


def peer(speedup: float, tasks: dict[str, float] | None = None) -> dict[str, Any]:
    per_task = [{"name": name, "speedup": value} for name, value in (tasks or {}).items()]
    return {"name": "prompt_lookup", "speedup": speedup, "verdict": "pass", "extra": {"per_task": per_task}}


def test_fastest_lossless_greedy_row_wins() -> None:
    rows = [
        row("early_exit", 1.5),
        row("swift", 1.9, lossless="fail"),
        row("early_exit:t1", 2.5),
        absent_row("skip_set"),
    ]
    found = verdict(rows, [], [])
    assert (found["best_strategy"], found["speedup"], found["extra"]["draft"]) == (
        "early_exit",
        1.5,
        "early_exit",
    )
    assert found["best_params"] == {"exit_layer": 2, "gamma": 3}
    assert any("swift is NOT lossless" in line for line in found["warnings"])


def test_looping_outputs_make_sampling_the_headline() -> None:
    found = verdict([row("early_exit", 1.9, distinct=0.3), row("early_exit:t1", 1.4)], [], [])
    assert found["best_strategy"] == "early_exit:t1"
    assert found["extra"]["headline"] == "sampling"
    assert any("distinct-3 0.30" in line for line in found["warnings"])
    alone = verdict([row("early_exit", 1.9, distinct=0.3)], [], [])
    assert alone["best_strategy"] == "early_exit"
    assert any("measure at temperature 1 too" in line for line in alone["warnings"])


def test_plain_fallback_wins_only_where_nothing_drafts() -> None:
    plain, sampled = row("skip_set", 1.27), row("early_exit:t1", 1.15)
    plain["extra"]["fell_back_to_plain"] = True
    assert verdict([plain, sampled], [], [])["best_strategy"] == "early_exit:t1"
    alone = verdict([plain], [], [])
    assert (alone["best_strategy"], alone["best_params"], alone["speedup"]) == (None, None, None)
    assert alone["extra"] == {"plain_is_fastest": True}
    assert any("decode with draft=None" in line for line in alone["warnings"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"speed": {"ci95": [0.99, 1.23]}}, "its interval reaches 1"),
        ({"speed": {"ci95": None}}, "it has no interval"),
        ({"acceptance": {"drafted": 0, "accepted": 0, "tau": 1.0}}, "it drafted nothing"),
        ({"acceptance": {"accepted": 0, "tau": 1.0}}, "none of its drafts was accepted"),
        ({"extra": {"noise": 0.12}}, "plain decoding seems that fast against itself"),
    ],
)
def test_a_row_that_did_not_draft_or_gain_for_sure_is_no_headline(
    changes: dict[str, dict[str, Any]], why: str
) -> None:
    tempting = row("swift", 1.11)
    assert verdict([tempting], [], [])["best_strategy"] == "swift"
    for key, values in changes.items():
        tempting[key] |= values
    found = verdict([tempting], [], [])
    assert found["best_strategy"] is None, why
    report = sample_report()
    report |= {"strategies": [tempting], "verdict": found}
    assert headline(report).startswith("Plain decoding is the fastest here"), why
    report["verdict"] = found | {"best_strategy": "swift"}  # as earlier versions wrote
    assert headline(report).startswith("Plain decoding is the fastest here"), why


def test_a_winner_measured_briefly_is_told_by_its_interval() -> None:
    brief = row("early_exit", 1.6)
    brief["speed"]["ci95"], brief["extra"]["too_short_to_tell"] = [1.2, 2.1], True
    report = sample_report() | {"strategies": [brief], "verdict": verdict([brief], [], [])}
    assert "decodes 1.20 to 2.10 times as fast" in headline(report)
    assert "1.60 times" not in headline(report)


def test_plain_rows_are_not_warned_of_for_their_prediction() -> None:
    plain = row("early_exit", 1.0)
    plain["extra"]["fell_back_to_plain"] = True
    plain["speed"]["predicted_speedup"] = 0.7
    assert not any("predict" in line for line in verdict([plain], [], [])["warnings"])


def test_losing_to_prompt_lookup_is_said_overall_and_by_task() -> None:
    found = verdict([row("early_exit", 1.5)], [peer(1.7, {"stdlib_code": 2.0, "stdlib_prose": 1.2})], [])
    text = "\n".join(found["warnings"])
    assert "early_exit loses to transformers' prompt lookup (1.50× against 1.70×)" in text
    assert "on stdlib_code (1.60× against 2.00×)" in text
    assert "on stdlib_prose" not in text
    assert verdict([row("early_exit", 1.5)], [peer(1.2)], [])["warnings"] == []


def test_losing_on_many_tasks_is_one_sentence() -> None:
    mine = row("early_exit", 1.5)
    names = [f"categories/{name}" for name in ("coding", "maths", "writing", "chat", "reasoning")]
    mine["per_task"] = [{**mine["per_task"][0], "name": name, "speedup": 1.5} for name in names]
    lookups = dict(zip(names, (1.6, 1.7, 2.0, 1.8, 1.0), strict=True))
    assert verdict([mine], [peer(1.2, lookups)], [])["warnings"] == [
        "early_exit loses to transformers' prompt lookup on 4 of 5 tasks, most of all on categories/writing "
        "(1.50× against 2.00×)"
    ]
    both = verdict([mine], [peer(1.62, lookups)], [])["warnings"]
    assert both[0] == "early_exit loses to transformers' prompt lookup (1.50× against 1.62×)"
    assert len(both) == 2


def test_a_loss_inside_the_noise_is_no_loss() -> None:
    close, brief = row("early_exit", 1.5), peer(1.7)
    close["extra"]["noise"] = 0.2
    assert verdict([close], [peer(1.7)], [])["warnings"] == []
    close["extra"]["noise"] = 0.1
    assert len(verdict([close], [peer(1.7)], [])["warnings"]) == 1
    brief["extra"]["too_short_to_tell"] = True
    assert verdict([close], [brief], [])["warnings"] == []


def test_loops_win_nothing_where_sampling_was_measured_and_lost() -> None:
    looping, sampled = row("early_exit", 1.9, distinct=0.3), row("early_exit:t1", 0.9)
    assert verdict([looping, sampled], [], [])["best_strategy"] is None


def test_sampling_rows_are_held_against_sampled_lookup() -> None:
    sampled = peer(1.7) | {"name": "prompt_lookup:t1"}
    found = verdict([row("early_exit", 1.9), row("early_exit:ngram:t1", 1.5)], [peer(1.2), sampled], [])
    assert found["warnings"] == [
        "early_exit:ngram:t1 loses to transformers' prompt lookup (1.50× against 1.70×)"
    ]


def test_failures_misses_and_notes_are_warned_of() -> None:
    slow = row(
        "early_exit",
        1.0,
        speed={
            "tokens_per_second": 1.0,
            "speedup": 1.0,
            "ci95": None,
            "predicted_speedup": 1.6,
            "against": "x",
        },
    )
    found = verdict(
        [slow, absent_row("swift", "failed", "RuntimeError: x"), row("skip_set", 0.9, lossless="not_run")],
        [],
        ["note"],
    )
    text = "\n".join(found["warnings"])
    for said in (
        "swift failed: RuntimeError: x",
        "predict 1.60×",
        "no strategy is faster",
        "skip_set was not tested",
        "note",
    ):
        assert said in text


def test_what_the_time_left_out_is_not_called_slow() -> None:
    left_out = absent_row("swift", reason=f"{UNRESOLVED} (0.0 s); raise max_minutes")
    found = verdict([row("early_exit", 0.9), left_out], [], [])
    assert any("no strategy that was measured is faster" in line for line in found["warnings"])
    found = verdict([row("early_exit", 0.9), absent_row("reduced_experts")], [], [])
    assert any("no strategy is faster" in line for line in found["warnings"])


def test_nothing_lossless_means_no_best() -> None:
    found = verdict([row("early_exit", 2.0, lossless="fail")], [], [])
    assert found["best_strategy"] is None
    assert found["speedup"] is None
