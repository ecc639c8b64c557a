"""The long-context sweep in a report: a table and two plots, or nothing at all."""

from __future__ import annotations

from typing import Any

from ssd_infer.report.charts import draw_charts
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import validate
from ssd_infer.report.sweep import sweep_of, sweep_rows
from tests.report.sample import measured_row, sample_report


def cell(name: str, batch: int, context: int, rate: float, **changes: Any) -> dict[str, Any]:
    """Build one measurement of a sweep."""
    made: dict[str, Any] = {
        "name": name,
        "batch": batch,
        "context": context,
        "params": {},
        "tokens_per_second": rate,
        "speedup": rate / 10,
        "alpha": None,
        "tau": None,
        "kv_bytes_per_token": 46_080.0 * context,
        "verdict": "pass",
    }
    return made | changes


def swept_report() -> dict[str, Any]:
    """Build a report whose row `sparse_attention` carries a sweep."""
    report = sample_report()
    cells = [
        cell(name, batch, context, batch * rate)
        for context in (512, 2048)
        for batch in (1, 4)
        for name, rate in (("plain", 10.0), ("transformers", 6.0), ("sparse_attention", 17.0))
    ]
    budgets = [
        cell(f"{ratio:g}", 1, 2048, 9.0, params={"ratio": ratio}, alpha=0.5 + ratio, tau=4.0)
        for ratio in (0.05, 0.1)
    ]
    row = measured_row("sparse_attention", 1.7, 0.8)
    row["extra"]["sweep"] = {"cells": cells, "budgets": budgets}
    report["strategies"] = [
        row if other["name"] == "sparse_attention" else other for other in report["strategies"]
    ]
    return report


def test_the_sweep_is_a_table_and_two_plots() -> None:
    report = swept_report()
    validate(report)
    assert len(sweep_rows(report)) == 12
    text = render_markdown(report)
    assert "| 4 | 2048 | sparse attention | 68.0 | 6.80× | – | – | 90.0 MiB | pass |" in text
    titles = [chart.title for chart in draw_charts(report)]
    assert titles[-2:] == ["Throughput at long contexts", "Acceptance against budget"]
    assert "Long contexts" in render_html(report)
    assert render_html(report) == render_html(swept_report())


def test_without_a_sweep_nothing_is_shown() -> None:
    report = sample_report()
    assert sweep_of(report) is None
    assert "Long contexts" not in render_markdown(report) + render_html(report)
    assert "Throughput at long contexts" not in [chart.title for chart in draw_charts(report)]
    report = swept_report()
    row = next(row for row in report["strategies"] if row["name"] == "sparse_attention")
    row["extra"]["sweep"] = {"reason": "no tokenizer"}
    assert sweep_rows(report) == []
