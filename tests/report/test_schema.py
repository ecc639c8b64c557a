"""The report's contract: what is valid, and which violations are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ssd_infer.report.rows import exit_code, headline, lookup_peer
from ssd_infer.report.schema import ReportError, load_schema, validate, violations
from tests.report.sample import absent_row, measured_row, sample_report

Change = Callable[[dict[str, Any]], Any]


def test_sample_is_valid_and_schema_is_json() -> None:
    validate(sample_report())
    assert json.loads(json.dumps(load_schema()))["title"] == "Checkpoint report"


def test_contract_keys_are_exactly_those_of_the_design() -> None:
    properties = load_schema()["properties"]
    assert set(load_schema()["required"]) == {
        "schema_version",
        "identity",
        "environment",
        "protocol",
        "baselines",
        "peers",
        "strategies",
        "quality",
        "verdict",
    }
    row = properties["strategies"]["items"]
    assert set(row["required"]) == {
        "name",
        "family",
        "params",
        "status",
        "reason",
        "lossless",
        "acceptance",
        "speed",
        "cost",
        "memory",
        "extra",
        "per_task",
    }
    assert set(row["properties"]["acceptance"]["required"]) == {
        "rounds",
        "drafted",
        "accepted",
        "alpha",
        "tau",
        "histogram",
        "per_position",
    }
    assert set(properties["identity"]["required"]) == {
        "checkpoint",
        "weights_sha256",
        "recipe",
        "step",
        "config",
        "command",
        "git",
    }


UNEVEN = {"title": "t", "columns": ["a", "b"], "rows": [["only one"]]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.pop("quality"), "'quality' is a required property"),
        (lambda r: r.update(surprise=1), "surprise"),
        (lambda r: r["strategies"][0]["lossless"].update(verdict=""), "verdict"),
        (lambda r: r["strategies"][0].update(status="skipped"), "skipped"),
        (lambda r: r["strategies"][0]["acceptance"].update(alpha=1.2), "1.2 is greater than the maximum"),
        (lambda r: r["strategies"][3].update(reason=None), "None is not of type 'string'"),
        (lambda r: r["strategies"][3].update(reason=""), "reason"),
        (lambda r: r["strategies"][0]["speed"].update(speedup=None), "speedup"),
        (lambda r: r["strategies"][0].update(name="early_exit:<b>"), "does not match"),
        (lambda r: r["strategies"].append(measured_row("early_exit", 1.0, 0.1)), "appears twice"),
        (lambda r: r["strategies"][0]["extra"].update(tables=[{"title": "x"}]), "'columns' is a required"),
        (lambda r: r["strategies"][0]["extra"].update(tables=[UNEVEN]), "1 cells under 2 columns"),
        (
            lambda r: r["strategies"][0]["acceptance"].update(accepted=999),
            "more tokens accepted than drafted",
        ),
        (lambda r: r["strategies"][0]["acceptance"].update(rounds=7), "histogram does not add up"),
        (lambda r: r["strategies"][0].update(family="<b>"), "does not match"),
    ],
)
def test_violation_is_named(change: Change, said: str) -> None:
    report = sample_report()
    change(report)
    found = violations(report)
    assert any(said in line for line in found), found
    with pytest.raises(ReportError):
        validate(report)


def test_all_violations_come_together() -> None:
    report = sample_report()
    report["environment"].pop("cpu")
    report["protocol"]["repeats"] = 0
    with pytest.raises(ReportError, match=r"environment(.|\n)*protocol\.repeats"):
        validate(report)


def test_a_strategy_nobody_here_has_heard_of_is_valid() -> None:
    report = sample_report()
    report["strategies"].append(absent_row("swift") | {"name": "their_own:t1", "family": "their_group"})
    validate(report)


def test_every_schema_version_is_read() -> None:
    for version in ("1.0", "2.0"):
        validate(sample_report() | {"schema_version": version})
    assert any("3.0" in line for line in violations(sample_report() | {"schema_version": "3.0"}))


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (measured_row("swift", 1.2, 0.5), 0),
        (measured_row("swift", 1.2, 0.5, lossless={"claimed": True, "verdict": "fail", "detail": "x"}), 1),
        (measured_row("swift", 1.2, 0.5, lossless={"claimed": True, "verdict": "not_run", "detail": "x"}), 1),
        (measured_row("swift", 1.2, 0.5, lossless={"claimed": False, "verdict": "fail", "detail": "x"}), 0),
        (absent_row("swift"), 0),
        (absent_row("swift", "failed", "RuntimeError: broken"), 1),
    ],
)
def test_exit_code_follows_lossless_rows(row: dict[str, Any], code: int) -> None:
    report = sample_report()
    report["strategies"] = [measured_row("early_exit", 1.5, 0.6), row]
    assert exit_code(report) == code


@pytest.mark.parametrize(
    ("speedup", "ci95", "said"),
    [
        (1.5, [1.4, 1.6], "1.50 times"),
        (1.1, [0.9, 1.3], "reads 1.10 times, 95 % 0.90 to 1.30"),
        (0.9, [0.8, 1.0], "Plain decoding is the fastest here"),
    ],
)
def test_headline_promises_no_more_than_the_interval(speedup: float, ci95: list[float], said: str) -> None:
    report = sample_report()
    row = measured_row("early_exit", speedup, 0.6)
    row["speed"]["ci95"] = ci95
    report["strategies"] = [row]
    report["verdict"]["best_strategy"] = "early_exit"
    assert said in headline(report)


def test_headline_of_a_sampled_row_says_so() -> None:
    report = sample_report()
    report["verdict"]["best_strategy"] = "early_exit:t1"
    assert (
        headline(report)
        == "Early exit, T = 1 decodes 1.31 times as fast as plain decoding (sampling, lossless)."
    )


def test_lookup_peer_is_that_of_the_same_setting() -> None:
    report = sample_report()
    report["peers"].append({"name": "prompt_lookup:t1", "speedup": 0.7})
    row = {row["name"]: row for row in report["strategies"]}
    assert lookup_peer(report, row["early_exit"])["speedup"] == 1.4  # type: ignore[index]
    assert lookup_peer(report, row["early_exit:t1"])["speedup"] == 0.7  # type: ignore[index]
    report["peers"][0]["speedup"] = None
    assert lookup_peer(report, row["early_exit"]) is None


def test_headline_of_a_fallback_claims_no_speed() -> None:
    report = sample_report()
    report["strategies"] = [measured_row("early_exit", 1.1, 0.6, extra={"fell_back_to_plain": True})]
    report["verdict"]["best_strategy"] = "early_exit"
    plain = "Plain decoding is the fastest here: no strategy drafts on this checkpoint."
    peer = "“prompt lookup”, which needs no draft of the model, reads 1.40 times, 95 % 1.20 to 1.60."
    assert headline(report) == f"{plain} {peer}"
    found = report["peers"][0]
    for key, value in (
        ("speedup", 1.02),
        ("speedup", None),
        ("verdict", "fail"),
        ("extra", {"ci95": [0.9, 1.9]}),
    ):
        report["peers"] = [found | {key: value}]
        assert headline(report) == plain


def test_headline_without_any_measurement() -> None:
    report = sample_report()
    report["verdict"]["best_strategy"] = None
    report["strategies"] = [row for row in report["strategies"] if row["status"] != "ok"]
    assert "No draft strategy could be measured" in headline(report)
