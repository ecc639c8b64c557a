"""Markdown, page and terminal: from JSON only, byte-stable, and safe against what a checkpoint calls itself."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from ssd_infer.evaluation.carried import carry
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.comparison import summary
from ssd_infer.report.definitions import DEFINITIONS
from ssd_infer.report.format import (
    bytes_text,
    interval,
    markdown,
    number,
    params_text,
    percent,
    row_params,
    times,
)
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.terminal import print_report
from tests.report.sample import HOSTILE, absent_row, sample_report


class Tags(HTMLParser):
    """Collect tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")
        ]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parse(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_rendering_is_byte_stable_and_needs_json_only() -> None:
    report = sample_report()
    again = json.loads(json.dumps(report))
    assert render_markdown(report).encode() == render_markdown(again).encode()
    assert render_html(report).encode() == render_html(again).encode()


def test_markdown_holds_the_figures_and_every_definition() -> None:
    text = render_markdown(sample_report())
    assert "| early_exit:ngram | E=2, γ=3 | pass | 174.6 | 1.94× | 1.87–2.00 | 1.99× |" in text
    assert "early_exit:ngram decodes 1.94 times as fast as plain decoding (lossless)." in text
    for name, _ in DEFINITIONS:
        assert f"| {name} |" in text


def test_every_row_appears_with_its_reason() -> None:
    report = sample_report()
    report["strategies"][-1] = absent_row("ctc_draft", "failed", "RuntimeError: the | broke")
    for text in (render_markdown(report), render_html(report)):
        for row in report["strategies"]:
            assert row["name"] in text
        assert "this checkpoint has no experts" in text
    assert "RuntimeError: the \\| broke" in render_markdown(report)
    assert "failed" in render_html(report)


def test_every_markdown_table_line_has_its_heads_number_of_cells() -> None:
    report = sample_report(HOSTILE)
    report["verdict"]["warnings"] = [HOSTILE]
    width = None
    for line in render_markdown(report).splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


def test_hostile_strings_stay_text() -> None:
    report = sample_report(HOSTILE)
    report["verdict"]["warnings"] = [HOSTILE]
    report["identity"]["recipe"] = HOSTILE
    report["strategies"][-1]["reason"] = HOSTILE
    report["peers"][1]["extra"]["reason"] = HOSTILE
    report["protocol"]["tasks"][0]["name"] = HOSTILE
    report["environment"]["cpu"] = '"><img src=x onerror=alert(1)>'
    page = parse(render_html(report))
    assert "script" not in page.tags
    assert page.links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert any('<script>alert("x")</script>' in word for word in page.words)
    text = render_markdown(report)
    assert "<script" not in text
    assert "[link](" not in text.replace("\\[link\\](", "")


def test_plots_survive_hostile_names() -> None:
    report = sample_report()
    report["peers"][0]["name"] = HOSTILE
    for chart in draw_charts(report):
        assert "<script" not in chart.svg.replace("&lt;script", "")


def test_page_embeds_every_plot_and_loads_nothing() -> None:
    report = sample_report()
    carry(report["strategies"])
    page = render_html(report)
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(images) == 6
    assert all(base64.b64decode(image).startswith(b"<?xml") for image in images)
    assert "http://" not in re.sub(r'src="[^"]+"', "", page)
    assert "https://" not in page


def test_plots_are_left_out_without_data() -> None:
    report = sample_report()
    report["quality"] = {"exits": [], "reason": "not a language model"}
    report["strategies"] = [absent_row(row["name"]) for row in report["strategies"]]
    report["verdict"] |= {"best_strategy": None, "best_params": None, "speedup": None}
    assert [chart.title for chart in draw_charts(report)] == ["Speedup over the fastest plain decoding"]
    assert "not a language model" in render_html(report)
    assert "not a language model" in render_markdown(report)


def test_failed_losslessness_is_shouted() -> None:
    report = sample_report()
    report["strategies"][1]["lossless"]["verdict"] = "fail"
    assert "NOT lossless" in render_markdown(report)
    assert 'class="hero bad"' in render_html(report)


def test_terminal_shows_rows_peers_reasons_and_the_page(tmp_path: object) -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_report(sample_report(), tmp_path, console)  # type: ignore[arg-type]
    text = console.export_text()
    for word in (
        "early_exit:ngram",
        "1.87–2.00",
        "prompt_lookup",
        "ssd_plain",
        "this checkpoint has no experts",
        "report.html",
    ):
        assert word in text


def test_row_parameters_are_shortened_and_a_fallback_is_named() -> None:
    row = {"params": {"exit_layer": 2, "gamma": 3, "confidence": 0.0, "copy": 4}, "extra": {}}
    assert row_params(row) == "E=2, γ=3, copy=4"
    assert row_params(row, 2) == "E=2, γ=3, …"
    assert row_params(row, 3) == "E=2, γ=3, copy=4"
    assert row_params(row | {"extra": {"fell_back_to_plain": True}}) == "plain decoding"


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (number(1.005, 2), "1.00"),
        (number(None), "–"),
        (number(float("nan")), "–"),
        (times(1.6), "1.60×"),
        (times(None), "–"),
        (interval([1.0, 2.0]), "1.00–2.00"),
        (interval(None), "–"),
        (percent(0.456), "46 %"),
        (bytes_text(None), "–"),
        (bytes_text(512), "512 B"),
        (bytes_text(3 * 2**20), "3.0 MiB"),
        (params_text({}), "–"),
        (params_text({"exit_layer": 2, "gamma": 3, "confidence": 0.0}), "E=2, γ=3"),
        (params_text({"skip_mlp": list(range(9))}), "skip_mlp=[9 items]"),
        (params_text({"graph": [[0, 0], [0, 1]]}), "graph=[2 items]"),
        (markdown("early_exit a_b _c_"), "early_exit a_b \\_c\\_"),
        (markdown("a\nb\x00c"), "a b c"),
    ],
)
def test_formats(made: str, wanted: str) -> None:
    assert made == wanted


def test_the_noise_of_a_report_stands_in_every_form() -> None:
    report = sample_report()
    line = "ssd_plain against itself: 1.00× (0.99–1.02); differences below 2.1 % are this report's own noise"
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(report, console=console)
    shown = console.export_text()
    for text in (render_markdown(report), html.unescape(render_html(report)), shown):
        assert line in text
    assert "ssd_plain:again" not in [line.split()[0] for line in shown.splitlines() if line.strip()]


def test_a_row_measured_too_briefly_says_so_in_every_form() -> None:
    report = sample_report()
    report["strategies"][0]["extra"]["too_short_to_tell"] = True
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(report, console=console)
    for text in (render_markdown(report), render_html(report), console.export_text()):
        assert "1.55–1.68, too short to tell" in text


def test_the_second_self_of_a_baseline_is_no_plain_decoding_to_compare_with() -> None:
    report = sample_report()
    report["baselines"][-1]["tokens_per_second"] = 99.0
    assert summary(report)["plain_tokens_per_second"] == 91.0
