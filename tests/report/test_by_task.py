"""Figures task by task: side by side where there are many, in every form, and safe against any name."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ssd_infer.report.by_task import compared, fastest_rows, fastest_table, side_by_side, task_table
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.format import task_text
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import validate
from ssd_infer.report.tables import protocol_table
from ssd_infer.report.terminal import print_report
from tests.report.sample import HOSTILE, measured_row, sample_report

TASKS = ("categories/coding", "categories/question_answering", "spec_bench/translation", "speed_bench/rag")


def on_tasks(row: dict[str, Any], tasks: tuple[str, ...] = TASKS) -> dict[str, Any]:
    """Spread a row's figures over tasks, each a bit faster than the one before."""
    base, speedup = row["per_task"][0], row["speed"]["speedup"]
    row["per_task"] = [
        base
        | {"name": name, "speedup": round(speedup + 0.1 * place, 2), "alpha": 0.5 + 0.05 * place}
        | {"extra": {"repetition": {"distinct_3": 0.25 + 0.1 * place}}}
        for place, name in enumerate(tasks)
    ]
    return row


def report_on(tasks: tuple[str, ...] = TASKS) -> dict[str, Any]:
    """Return a report of two drafting rows, a plain one and a peer on `tasks`."""
    report = sample_report()
    plain = measured_row("swift", 1.0, 0.0)
    plain["extra"]["fell_back_to_plain"] = True
    rows = [measured_row("early_exit", 1.6, 0.7), measured_row("early_exit:t1", 0.9, 0.5), plain]
    report["strategies"] = [on_tasks(row, tasks) for row in rows]
    report["verdict"] |= {"best_strategy": "early_exit", "speedup": 1.6}
    report["peers"][0]["extra"]["per_task"] = [
        {"name": name, "speedup": 1.2 + 0.2 * n} for n, name in enumerate(tasks)
    ]
    report["protocol"]["tasks"] = [
        {
            "name": name,
            "samples": 8,
            "prompt_tokens": 310,
            "new_tokens": 64,
            "extra": {"prompts_sha256": "ab" * 32, "shortest_prompt": 22, "written_by": "chat template"},
        }
        for name in tasks
    ]
    validate(report)
    return report


def test_rows_that_drafted_and_peers_stand_side_by_side_on_every_task() -> None:
    table = side_by_side(report_on())
    assert table.columns == (
        "strategy",
        "coding",
        "question answering",
        "Spec-Bench translation",
        "SPEED-Bench rag",
    )
    assert table.rows == (
        ("early exit", "1.60×", "1.70×", "1.80×", "1.90×"),
        ("early exit, T = 1", "0.90×", "1.00×", "1.10×", "1.20×"),
        ("prompt lookup", "1.20×", "1.40×", "1.60×", "1.80×"),
    )
    assert table.looks == ("greedy", "sampled", "greedy")


def test_the_fastest_over_all_tasks_has_all_its_figures() -> None:
    report = report_on()
    assert [row["name"] for row in fastest_rows(report)] == ["early_exit", "early_exit:t1"]
    table = fastest_table(report)
    assert len(table.rows) == 8
    assert table.rows[1][:2] == ("early exit", "question answering")
    assert table.rows[1][3:] == ("1.70×", "1.60–1.80", "0.55", "2.20", "0.35")
    assert table.columns[2:] == ("tokens/s", "speedup", "95 %", "α", "τ", "distinct-3")
    assert len(task_table(report).rows) == 12


def test_two_tasks_need_no_view_of_their_own() -> None:
    report = report_on(("stdlib_code", "stdlib_prose"))
    assert (side_by_side(report).rows, fastest_table(report).rows) == ((), ())
    assert not any("by task" in chart.title for chart in draw_charts(report))
    page, lines = render_html(report), render_markdown(report)
    assert "Speedup by task" not in page + lines
    assert "## By task" in lines


def test_where_nothing_drafted_there_is_nothing_to_compare() -> None:
    report = report_on()
    report["strategies"] = report["strategies"][2:]
    report["peers"] = []
    assert (compared(report), fastest_rows(report)) == ([], [])
    assert not any("by task" in chart.title for chart in draw_charts(report))
    assert "By task" in render_html(report)


def test_every_form_shows_every_category() -> None:
    report, said = report_on(), io.StringIO()
    print_report(report, console=Console(file=said, width=140))
    for text in (render_html(report), render_markdown(report), said.getvalue()):
        for word in (
            "coding",
            "question answering",
            "Spec-Bench translation",
            "SPEED-Bench rag",
            "1.90×",
            "0.55",
        ):
            assert word in text
    titles = [chart.title for chart in draw_charts(report)]
    assert {"Speedup by task", "Acceptance by task"} <= set(titles)


def test_the_bars_of_a_terminal_grow_with_the_speedup() -> None:
    said = io.StringIO()
    print_report(report_on(), console=Console(file=said, width=140))
    bars = [line.count("█") for line in said.getvalue().splitlines() if "█" in line]
    assert bars[3] == 16
    assert bars[:4] == sorted(bars[:4])
    assert bars[4] < bars[0]


@pytest.mark.parametrize("missing", ["speedup", "alpha"])
def test_a_figure_that_is_missing_leaves_its_cell_empty(missing: str) -> None:
    report = report_on()
    report["strategies"][0]["per_task"][2][missing] = None
    del report["peers"][0]["extra"]["per_task"][1]
    assert side_by_side(report).rows[2][2] == "–"
    assert len([chart for chart in draw_charts(report) if "by task" in chart.title]) == 2


def test_hostile_tasks_are_drawn_and_stay_text() -> None:
    report = report_on((HOSTILE, "categories/" + HOSTILE, "a\x00b\u202e", "x" * 400))
    page = render_html(report)
    assert "<script" not in page
    assert "\u202e" not in page
    assert len([chart for chart in draw_charts(report) if "by task" in chart.title]) == 2
    print_report(report, console=Console(file=io.StringIO()))


def test_lengths_and_writing_of_prompts_stand_in_the_protocol() -> None:
    table = protocol_table(report_on()["protocol"])
    assert table.columns[-1] == "written by"
    assert table.rows[0][:4] == ("coding", 8, "22–310", 64)
    assert table.rows[0][-1] == "chat template"
    older = protocol_table(sample_report()["protocol"])
    assert "written by" not in older.columns
    assert older.rows[0][2] == "64"


def test_categories_are_named_without_their_set() -> None:
    assert [
        task_text(name) for name in ("categories/question_answering", "a/b_c", "file:/x/categories/y")
    ] == [
        "question answering",
        "a/b c",
        "y",
    ]
