"""Comparing reports: labels, cells, regressions, remarks, and the command."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.compare import main
from ssd_infer.report.comparison import compare, label_reports, regressions
from ssd_infer.report.comparison_html import render_comparison_html, step_charts
from ssd_infer.report.comparison_text import render_comparison
from ssd_infer.report.write import write_report
from tests.report.sample import HOSTILE, absent_row, sample_report


@pytest.fixture
def pair() -> tuple[dict[str, Any], dict[str, Any]]:
    after = sample_report("outputs/layerskip/demo/checkpoints/step-2400")
    return sample_report(), after


def row(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in report["strategies"] if row["name"] == name)


def test_equal_reports_have_no_regression(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = compare(pair)
    assert found["regressions"] == []
    assert found["remarks"] == []
    assert found["labels"] == ["step-1200", "step-2400"]
    assert next(line["name"] for line in found["rows"]) == "early_exit"


def test_each_kind_of_regression_is_named(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = pair
    before["quality"]["loss"], after["quality"]["loss"] = 3.0, 3.1
    row(after, "early_exit")["speed"] |= {"speedup": 1.2, "ci95": [1.1, 1.3]}
    row(after, "early_exit")["acceptance"]["alpha"] = 0.5
    row(after, "early_exit:ngram")["lossless"]["verdict"] = "fail"
    after["strategies"][2] = absent_row("early_exit:t1", "failed", "RuntimeError: x")
    text = "\n".join(regressions(before, after, "new"))
    for said in (
        "speedup fell from 1.62× to 1.20×",
        "α fell from 0.71 to 0.50",
        "now says fail",
        "is now failed",
        "loss rose from 3.000",
    ):
        assert said in text
    assert regressions(after, before, "old") == []


def test_speed_within_the_intervals_is_no_regression(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = pair
    row(after, "early_exit")["speed"] |= {"speedup": 1.55, "ci95": [1.45, 1.6]}
    assert regressions(before, after, "new") == []
    row(after, "early_exit")["speed"] |= {"speedup": 1.5, "ci95": None}
    assert regressions(before, after, "new") == ["new: early_exit speedup fell from 1.62× to 1.50×"]


def test_what_makes_reports_incomparable_is_remarked(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = pair
    after["environment"]["threads"] = 8
    after["environment"]["dtype"] = "bfloat16"
    after["protocol"]["tasks"][0]["extra"]["prompts_sha256"] = "00"
    assert [line.rpartition(" ")[2] for line in compare([before, after])["remarks"]] == [
        "machine",
        "precision",
        "prompts",
    ]


def test_labels_are_distinct() -> None:
    one = sample_report("a/x/step-1")
    assert label_reports([one, sample_report("a/y/step-1")]) == ["x/step-1", "y/step-1"]
    assert label_reports([one, copy.deepcopy(one)]) == ["1: step-1", "2: step-1"]
    with pytest.raises(ValueError, match="1 labels for 2 reports"):
        compare([one, one], ["only"])


def test_rendering_is_stable_and_escapes(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = compare(pair, [HOSTILE, "b"])
    assert render_comparison(found) == render_comparison(json.loads(json.dumps(found)))
    assert "<script" not in render_comparison(found)
    assert "<script" not in render_comparison_html(found)
    assert "| early exit | 1.62× \\[1.55–1.68\\] α 0.71 |" in render_comparison(found)


def test_lines_over_steps_are_drawn() -> None:
    series = {
        "steps": [1, 2],
        "loss": [3.0, None],
        "speedup": {"early_exit": [1.1, None]},
        "alpha": {"early_exit": [0.4, 0.5]},
    }
    assert [chart.title for chart in step_charts(series)] == ["Speedup", "Acceptance α", "Held-out loss"]
    assert step_charts(None) == []


def test_command_writes_and_tells(
    tmp_path: Path, pair: tuple[dict[str, Any], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = pair
    row(after, "early_exit")["lossless"]["verdict"] = "fail"
    paths = [str(write_report(report, tmp_path / name)) for name, report in (("a", before), ("b", after))]
    assert main([*paths, "--markdown", str(tmp_path / "c.md"), "--json", str(tmp_path / "c.json")]) == 0
    assert "worse: step-2400: early exit passed" in capsys.readouterr().out
    assert (tmp_path / "c.md").read_text() == render_comparison(json.loads((tmp_path / "c.json").read_text()))
    assert main([*paths, "--strict"]) == 1
    assert main([paths[0], str(tmp_path / "absent")]) == 2


@pytest.mark.parametrize("option", ["--markdown", "--json"])
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = str(write_report(sample_report(), tmp_path))
    assert main([path, path, option, f"{path}/out"]) == 2
    assert f"{option}: must be a place that can be written to" in capsys.readouterr().err
