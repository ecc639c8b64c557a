"""The long-context sweep in a report: a table and two plots, or nothing at all."""

from __future__ import annotations

from typing import Any

from ssd_infer.evaluation.carried import carry
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import validate
from ssd_infer.strategies.sparse_attention.sweep_report import sweep_plots, sweep_tables
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
    assert carry(report["strategies"]) == []
    return report


def swept_row(report: dict[str, Any]) -> dict[str, Any]:
    """Return the row that carries the sweep."""
    found: dict[str, Any] = next(row for row in report["strategies"] if row["name"] == "sparse_attention")
    return found


def test_the_sweep_is_a_table_and_two_plots() -> None:
    report = swept_report()
    validate(report)
    (table,) = sweep_tables(swept_row(report))
    assert len(table.rows) == 12
    text = render_markdown(report)
    assert "| 4 | 2048 | sparse attention | 68.0 | 6.80× | – | – | 90.0 MiB | pass |" in text
    titles = [chart.title for chart in draw_charts(report)]
    assert {f"sparse attention: {plot.title}" for plot in sweep_plots(swept_row(report))} < set(titles)
    throughput, budgets = sweep_plots(swept_row(report))
    assert (throughput.title, budgets.title) == ("Throughput at long contexts", "Acceptance against budget")
    assert throughput.panels == ["512 tokens", "2048 tokens"]
    assert "Long contexts" in render_html(report)
    assert render_html(report) == render_html(swept_report())


def test_a_sweep_is_shown_of_a_row_without_figures() -> None:
    report = swept_report()
    row = swept_row(report)
    row["status"], row["reason"] = "not_applicable", "greedy decoding was not part of this run"
    validate(report)
    assert "Long contexts" in render_markdown(report)
    assert "Long contexts" in render_html(report)


def test_without_a_sweep_nothing_is_shown() -> None:
    report = sample_report()
    assert "Long contexts" not in render_markdown(report) + render_html(report)
    assert "Throughput at long contexts" not in " ".join(chart.title for chart in draw_charts(report))
    row = swept_row(swept_report())
    row["extra"]["sweep"] = {"reason": "no tokenizer"}
    assert sweep_tables(row) == sweep_plots(row) == []
