"""Plots and tables as data: written, checked, read, joined over rows, drawn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ssd_infer.report.charts import COLOURS, svg_text
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.plots import draw_plot
from ssd_infer.report.schema import ReportError, validate
from ssd_infer.report.table import Mark, Plot, Series, Table, plots_of, tables_of
from tests.report.sample import sample_report

HEAT = Plot(
    "heat",
    "γ",
    "E",
    (
        Series("a", (1, 2, 1), (1, 1, 2), ("1.0", "0.5", "2.0"), "left", (1.0, 0.5, 2.0)),
        Series("b", (2,), (2,), panel="right", values=(1.4,)),
    ),
    kind="heatmap",
    centre=1.0,
    listed=False,
)
LINES = Plot(
    "lines",
    "budget",
    "accepted",
    (
        Series("first", (1, 10, 100), (0.5, None, 0.7), ("x", "y", "z"), "one"),
        Series("first", (1, 10), (0.4, 0.3), panel="two"),
        Series("limit", (1, 100), (1.0, 1.0), panel="two", style="dashed"),
    ),
    "How to read it.",
    marks=(Mark("x", 10, "here"), Mark("y", 0.6, "there", "one")),
    log_x=True,
    from_zero=True,
)
CLOUD = Plot(
    "cloud", "x", "y", (Series("many", tuple(range(60)), tuple(range(60))),), kind="scatter", listed=False
)
BARS = Plot("bars", "x", "y", (Series("one", (1, 2), (3, 4)), Series("two", (1, 2), (4, None))), kind="bar")
PLOTS = (HEAT, LINES, CLOUD, BARS)


def carrying(*plots: Plot, tables: tuple[Table, ...] = (), rows: int = 1) -> dict[str, Any]:
    """Return a report whose first rows carry plots and tables."""
    report = sample_report()
    for row in report["strategies"][:rows]:
        row["extra"]["plots"] = [plot.to_json() for plot in plots]
        row["extra"]["tables"] = [table.to_json() for table in tables]
    read: dict[str, Any] = json.loads(json.dumps(report))
    return read


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.title)
def test_a_plot_is_written_checked_read_and_drawn(plot: Plot) -> None:
    report = carrying(plot)
    validate(report)
    ((name, found),) = plots_of(report["strategies"])
    assert (name, found) == ("early_exit", plot)
    figure = draw_plot(found, COLOURS)
    assert len(figure.axes) == len(plot.panels)
    assert svg_text(figure).startswith("<?xml")
    assert "early exit: " + plot.title in render_html(report)
    text = render_markdown(report)
    assert (f"early exit: {plot.title}" in text) == plot.listed


def test_no_panel_cuts_off_what_another_is_too_low_for() -> None:
    """Panels that share an axis from zero reach to the highest of all, whichever is drawn first."""
    low, high = Series("one", (1, 2), (1.0, 1.2), panel="a"), Series("one", (1, 2), (3.0, 2.0), panel="b")
    for series in ((low, high), (high, low)):
        figure = draw_plot(Plot("panels", "x", "y", series, from_zero=True), COLOURS)
        for axes in figure.axes:
            bottom, top = axes.get_ylim()
            assert bottom == 0
            assert top >= 3.0


def test_a_plot_of_many_panels_has_the_whole_width() -> None:
    def page(panels: int) -> str:
        series = tuple(Series("one", (1, 2), (1.0, 1.2), panel=f"panel {n}") for n in range(panels))
        return render_html(carrying(Plot("panels", "x", "y", series)))

    assert '<figure class="wide">' in page(3)
    assert '<figure class="wide">' not in page(2)


def test_legends_stand_outside_and_name_every_series_once() -> None:
    figure = draw_plot(LINES, COLOURS)
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    assert [text.get_text() for text in legend.get_texts()] == ["first", "limit"]
    assert draw_plot(CLOUD, COLOURS).axes[0].get_legend() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "pie"}, "pie"),
        ({"marks": [{"axis": "z", "at": 1}]}, "'z'"),
        ({"series": [{"name": "a", "x": [1], "y": [1, 2]}]}, "1 x and 2 y"),
        ({"series": [{"name": "a", "x": [1], "y": [1], "labels": ["a", "b"]}]}, "1 x and 2 labels"),
        ({"kind": "heatmap", "series": [{"name": "a", "x": [1], "y": [1]}]}, "needs a value"),
    ],
)
def test_a_plot_whose_parts_do_not_go_together_is_refused(change: dict[str, Any], words: str) -> None:
    report = carrying(BARS)
    report["strategies"][0]["extra"]["plots"][0] |= change
    with pytest.raises(ReportError, match=words):
        validate(report)


def test_what_several_rows_carry_under_one_title_is_one() -> None:
    table = Table("facts", ("a", "b"), ((1, 2),))
    report = carrying(BARS, HEAT, tables=(table,), rows=2)
    ((where, joined),) = tables_of(report["strategies"])
    assert where == "2 rows"
    assert joined.columns == ("name", "a", "b")
    assert joined.rows == (("early_exit", 1, 2), ("early_exit:ngram", 1, 2))
    bars = next(plot for _, plot in plots_of(report["strategies"]) if plot.title == "bars")
    assert [one.name for one in bars.series] == [
        "early_exit, one",
        "early_exit, two",
        "early_exit:ngram, one",
        "early_exit:ngram, two",
    ]
    other = Table("facts", ("a", "c"), ((1, 2),))
    report["strategies"][1]["extra"]["tables"] = [other.to_json()]
    assert [name for name, _ in tables_of(report["strategies"])] == ["early_exit", "early_exit:ngram"]


def test_baselines_and_peers_may_carry_tables() -> None:
    report = sample_report()
    table = Table("facts", ("a",), ((1,),)).to_json()
    report["baselines"][0]["extra"] = {"tables": [table]}
    report["peers"][0]["extra"]["tables"] = [table]
    validate(report)
    assert "2 rows: facts" in render_html(report)
    assert "2 rows: facts" in render_markdown(report)
    report["peers"][0]["extra"]["tables"] = [table | {"rows": [[1, 2]]}]
    with pytest.raises(ReportError, match="2 cells under 1 columns"):
        validate(report)
