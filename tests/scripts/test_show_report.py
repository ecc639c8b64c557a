"""The script that shows the newest report of a run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ssd_infer.report.write import write_report
from tests.report.sample import sample_report

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "show_report.py"))


def test_the_highest_step_is_shown_and_copies_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("step-9", "step-10", "step-280.bak", "step-0300", "step-²"):
        write_report(sample_report(), tmp_path / "reports" / name)
    assert SCRIPT["main"]([str(tmp_path)]) == 0
    assert "step-10/report.html" in capsys.readouterr().out


def test_what_is_no_report_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text("{garbage")
    assert SCRIPT["main"]([str(tmp_path)]) == 2
    assert "report.json: not a readable report" in capsys.readouterr().err
