"""How cost grows, in a report: one table and one plot of all drafts, or nothing at all."""

from __future__ import annotations

from typing import Any

from ssd_infer.evaluation.carried import carry
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import validate
from ssd_infer.report.sweep import TITLE, sweep_plot, sweep_table
from ssd_infer.report.table import Plot, Table
from ssd_infer.strategies.sparse_attention.budget_report import budget_plots, read_tables
from tests.report.sample import measured_row, sample_report

SWEPT = ("sparse_attention", "early_exit")


def cell(name: str, batch: int, context: int, rate: float, **changes: Any) -> dict[str, Any]:
    """Build one measurement of a sweep."""
    made: dict[str, Any] = {
        "name": name,
        "batch": batch,
        "context": context,
        "params": {},
        "note": "",
        "plain": False,
        "claimed": True,
        "tokens_per_second": rate,
        "speedup": rate / (10 * batch),
        "alpha": None,
        "tau": None,
        "verify_ratio": 1.0,
        "kv_bytes_per_token": 46_080.0 * context,
        "peak_bytes": 2 << 30,
        "verdict": "pass",
    }
    return made | changes


def swept_report(
    batches: tuple[int, ...] = (1, 4), contexts: tuple[int, ...] = (512, 2048)
) -> dict[str, Any]:
    """Build a report whose rows `sparse_attention` and `early_exit` carry a sweep; early exit declines at 2048."""
    report = sample_report()
    rates = {"plain": 10.0, "transformers": 6.0, "sparse_attention": 17.0, "early_exit": 12.0}

    def cells(own: str) -> list[dict[str, Any]]:
        found = [
            cell(name, batch, context, batch * rates[name], drafter={})
            for context in contexts
            for batch in batches
            for name in ("plain", "transformers", own)
        ]
        for one in found:
            if (one["name"], one["context"]) == ("early_exit", 2048):
                one |= {"plain": True, "note": "plain decoding: no gain is predicted", "speedup": 1.0}
        return found

    budgets = [
        cell(f"{ratio:g}", 1, 2048, 9.0, params={"ratio": ratio}, alpha=0.5 + ratio, tau=4.0)
        for ratio in (0.05, 0.1)
    ]
    sparse = measured_row("sparse_attention", 1.7, 0.8)
    sparse["extra"]["sweep"] = {"cells": cells("sparse_attention"), "budgets": budgets}
    report["strategies"] = [
        sparse if other["name"] == "sparse_attention" else other for other in report["strategies"]
    ]
    report["strategies"][0]["extra"]["sweep"] = {"cells": cells("early_exit")}
    assert carry(report["strategies"]) == []
    return report


def swept_row(report: dict[str, Any]) -> dict[str, Any]:
    """Return the row that carries the sweep and acceptance by budget."""
    found: dict[str, Any] = next(row for row in report["strategies"] if row["name"] == "sparse_attention")
    return found


def test_all_drafts_share_a_table_and_a_plot() -> None:
    report = swept_report()
    validate(report)
    assert len(sweep_table(report).rows) == 4 * 4, "plain decodings once, and either draft"
    text = render_markdown(report)
    assert text.count(f"## {TITLE}") == 1
    assert "| 2048 | 4 | sparse attention | – | 68.0 | 1.70× | – | – | 1.00 | 2.0 GiB | pass |" in text
    assert "| 2048 | 4 | early exit | plain decoding | 48.0 | 1.00× |" in text
    plot = sweep_plot(report)
    assert plot is not None
    assert plot.panels == ["context 512", "context 2048"]
    assert {(one.name, one.x, one.y) for one in plot.series if one.panel == "context 512"} == {
        ("early exit", (1, 4), (1.2, 1.2)),
        ("sparse attention", (1, 4), (1.7, 1.7)),
    }
    titles = [chart.title for chart in draw_charts(report)]
    assert titles.count(TITLE) == 1
    assert render_html(report).count(f"<h2>{TITLE}</h2>") == 1
    assert render_html(report) == render_html(swept_report())


def test_one_batch_is_drawn_against_context() -> None:
    plot = sweep_plot(swept_report(batches=(4,)))
    assert plot is not None
    assert (plot.panels, plot.series[0].x) == (["batch 4"], (512, 2048))
    single = sweep_plot(swept_report((4,), (512,)))
    assert single is not None
    assert single.panels == ["context 512"]


def test_other_tokens_of_a_draft_that_promises_none_are_no_failure() -> None:
    report = swept_report()
    own = report["strategies"][0]["extra"]["sweep"]["cells"][2]
    own |= {"verdict": "fail", "claimed": False}
    assert "| lossy |" in render_markdown(report)
    own["claimed"] = True
    assert "| fail |" in render_markdown(report)


def test_what_sparse_drafts_read_is_shown_by_their_own_room() -> None:
    report = swept_report()
    (table,) = read_tables(swept_row(report))
    assert table.rows[-1] == (2048, 4, "90.0 MiB", "90.0 MiB")
    (budgets,) = budget_plots(swept_row(report))
    assert budgets.title == "Acceptance against budget"
    assert f"sparse attention: {budgets.title}" in [chart.title for chart in draw_charts(report)]


def test_a_sweep_is_shown_of_a_row_without_figures() -> None:
    report = swept_report()
    row = swept_row(report)
    row["status"], row["reason"] = "not_applicable", "greedy decoding was not part of this run"
    validate(report)
    assert "sparse attention" in {str(line[2]) for line in sweep_table(report).rows}


def test_without_a_sweep_nothing_is_shown() -> None:
    report = sample_report()
    assert TITLE not in render_markdown(report) + render_html(report)
    assert sweep_plot(report) is None
    row = swept_row(swept_report())
    row["extra"]["sweep"] = {"reason": "no tokenizer"}
    assert read_tables(row) == budget_plots(row) == []


def test_the_sweep_of_an_older_report_is_drawn_as_it_was() -> None:
    """Its row carries a table and a plot of its own, and cells that know less."""
    report = sample_report()
    old = [cell(name, 4, 512, 9.0) for name in ("plain", "sparse_attention")]
    for one in old:
        for key in ("note", "plain", "claimed", "verify_ratio", "peak_bytes"):
            del one[key]
    extra = swept_row(report)["extra"]
    extra["sweep"] = {"cells": old, "budgets": []}
    extra["tables"] = [Table("Long contexts", ("batch",), ((4,),)).to_json()]
    extra["plots"] = [Plot("Throughput at long contexts", "batch", "tokens", ()).to_json()]
    extra["plots"][0]["series"] = [{"name": "plain", "x": [4], "y": [9.0]}]
    validate(report)
    text = render_markdown(report)
    assert "sparse attention: Long contexts" in text
    assert TITLE not in text
    assert "sparse attention: Throughput at long contexts" in [chart.title for chart in draw_charts(report)]
