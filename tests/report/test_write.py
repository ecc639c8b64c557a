"""Writing: atomic, validated before anything is touched, readable afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_infer.report.schema import ReportError
from ssd_infer.report.write import dump_json, read_report, write_report
from tests.report.sample import sample_report


def test_writes_all_files_and_reads_back(tmp_path: Path) -> None:
    path = write_report(
        sample_report(), tmp_path / "deep" / "report", [{"tokens": [[1, 2]]}, {"tokens": [[3]]}]
    )
    assert {file.name for file in path.parent.iterdir()} == {
        "report.json",
        "report.md",
        "report.html",
        "samples.jsonl",
    }
    assert read_report(path) == read_report(path.parent) == sample_report()
    assert [json.loads(line) for line in (path.parent / "samples.jsonl").read_text().splitlines()][1] == {
        "tokens": [[3]]
    }


def test_invalid_report_leaves_the_old_one(tmp_path: Path) -> None:
    write_report(sample_report(), tmp_path)
    before = (tmp_path / "report.json").read_bytes()
    broken = sample_report()
    del broken["verdict"]
    with pytest.raises(ReportError, match="verdict"):
        write_report(broken, tmp_path, [])
    assert (tmp_path / "report.json").read_bytes() == before


def test_not_a_number_is_null_with_a_reason_or_refused_by_name(tmp_path: Path) -> None:
    report = sample_report()
    report["quality"]["loss"] = float("nan")
    quality = json.loads(write_report(report, tmp_path / "a").read_text())["quality"]
    assert (quality["loss"], quality["nonfinite"]) == (None, {"loss": "NaN"})
    report["baselines"][0]["seconds"] = float("nan")
    with pytest.raises(ReportError, match=r"baselines\[0\]"):
        write_report(report, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "said"), [(None, "no such report"), ("{", "not a readable report"), ("{}", "required property")]
)
def test_unreadable_report_names_the_path(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ReportError, match=said) as caught:
        read_report(path)
    assert str(path) in str(caught.value)


def test_json_layout_is_stable() -> None:
    assert dump_json({"b": 1, "a": "γ"}) == '{\n "b": 1,\n "a": "γ"\n}\n'
