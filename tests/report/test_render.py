"""Markdown, page and terminal: from JSON only, byte-stable, and safe against what a checkpoint calls itself."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

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
    readable,
    row_params,
    said,
    task_text,
    times,
)
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.tables import orders, strategy_table
from ssd_infer.report.terminal import print_report
from tests.report.sample import HOSTILE, absent_row, measured_row, sample_report


class Tags(HTMLParser):
    """Collect tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.styles: list[str] = []
        self.rows: list[tuple[str, str]] = []
        """(class, first words) of every table row."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")
        ]

        given = dict(attrs)
        self.styles += [given["style"] or ""] if "style" in given else []
        if tag == "tr":
            self.rows.append((given.get("class") or "", ""))

    def handle_data(self, data: str) -> None:
        if self.rows and not self.rows[-1][1]:
            self.rows[-1] = (self.rows[-1][0], data.strip())
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
    assert "| early exit + n-gram | E=2, γ=3 | pass | 1.94× | 1.87–2.00 | 1.99× | 174.6 |" in text
    assert "Early exit + n-gram decodes 1.94 times as fast as plain decoding (lossless)." in text
    for name, _ in DEFINITIONS:
        assert f"| {name} |" in text


def test_every_row_appears_with_its_reason() -> None:
    report = sample_report()
    report["strategies"][-1] = absent_row("ctc_draft", "failed", "RuntimeError: the | broke")
    for text in (render_markdown(report), render_html(report)):
        for row in report["strategies"]:
            assert readable(row["name"]) in text
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
    report["peers"][0]["name"] = HOSTILE
    report["strategies"][0]["params"] = {HOSTILE: HOSTILE}
    report["strategies"][0]["extra"]["tables"] = [
        {"title": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]]}
    ]
    stream = report["strategies"][1]["extra"]["stream"]
    stream |= {"task": HOSTILE, "prompt": HOSTILE, "pieces": [HOSTILE, "</p>", "\x00\u202e", "", "<b>"]}
    page = parse(render_html(report))
    assert "script" not in page.tags
    assert page.links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert any('<script>alert("x")</script>' in word for word in page.words)
    assert set(page.tags) == set(parse(render_html(sample_report())).tags), "no tag of anyone else's"
    assert {"··", "·"} <= set(page.words), "what cannot be seen is a dot"
    assert all(re.fullmatch(r"(--by\d:\d+;)+|--figures:\d+", style) for style in page.styles)
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
        "early exit + n-gram",
        "1.87–2.00",
        "prompt lookup",
        "plain decoding",
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


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("early_exit", "early exit"),
        ("early_exit:ngram:t1", "early exit + n-gram, T = 1"),
        ("early_exit+ngram", "early exit + n-gram"),
        ("skip_set:bayes:t0.7", "skip set, bayes, T = 0.7"),
        ("ctc_draft:same_wer:b8", "CTC draft, same WER, batch 8"),
        ("ssd_plain:again:t1", "plain decoding, again, T = 1"),
        ("transformers_generate", "transformers' plain decoding"),
        ("theirs", "theirs"),
        ("their_own:two_parts:t1:b16", "their own, two parts, T = 1, batch 16"),
        ("t1:b2x:tea", "t1, b2x, tea"),
        ("", ""),
        (":", ", "),
    ],
)
def test_names_are_readable_whoever_made_them(name: str, wanted: str) -> None:
    assert readable(name) == wanted


def test_names_in_sentences_are_readable_and_what_is_typed_stays() -> None:
    names = ["early_exit", "early_exit:ngram", "early_exit:t1", "ssd_plain"]
    line = "early_exit:ngram, early_exit:t1: ssd_plain. Ask for draft=early_exit or `early_exit`; "
    line += "early_exit+ngram x_early_exit"
    assert said(line, names) == (
        "early exit + n-gram, early exit, T = 1: plain decoding. Ask for draft=early_exit or `early_exit`; "
        "early_exit+ngram x_early_exit"
    )
    assert said("early_exit", []) == "early_exit"


def test_tasks_are_named_without_their_folders() -> None:
    assert [task_text(name) for name in ("stdlib_code", "file:/a/b_c/d_e.jsonl", "file:d.jsonl")] == [
        "stdlib code",
        "d_e.jsonl",
        "d.jsonl",
    ]


def test_latencies_stand_in_every_form() -> None:
    report = sample_report()
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(report, console=console)
    for text in (render_markdown(report), render_html(report), console.export_text()):
        assert "5.15 / 77.3" in text, "median and 95th percentile of the best row"
        assert "10.0 / 12.0" in text, "and of plain decoding"
    narrow = Console(record=True, width=110, file=io.StringIO())
    print_report(report, console=narrow)
    assert "TTFT" not in narrow.export_text()


def test_a_report_without_latencies_has_no_columns_for_them() -> None:
    report = sample_report()
    for row in (*report["strategies"], *report["baselines"]):
        row.get("extra", {}).pop("latency", None)
    for text in (render_markdown(report), render_html(report)):
        assert "first token ms" not in text
        assert "1.99×" in text
    assert "sort by" in render_html(report)


def test_each_token_is_coloured_by_who_wrote_it() -> None:
    page = render_html(sample_report())
    tokens = re.findall(r'<span class="(draft|target)" title="([^"]*)">([^<]*)</span>', page)
    assert [(kind, text) for kind, _, text in tokens] == [
        ("target", "return"),
        ("draft", " x"),
        ("draft", " +"),
        ("target", " 1"),
        ("draft", "\n"),
    ]
    assert tokens[1][1] == "round 1: draft 1 of 2 accepted"
    assert tokens[3][1] == "round 1: written by the target after 2 accepted drafts"
    assert "3 of 5 tokens drafted" in page
    assert "Who wrote which token" not in render_html(without_stream())


def without_stream() -> dict[str, Any]:
    report = sample_report()
    del report["strategies"][1]["extra"]["stream"]
    return report


def test_rows_can_be_filtered_and_sorted_without_a_script() -> None:
    report = sample_report()
    page = parse(render_html(report))
    assert {"input", "label", "details"} <= set(page.tags)
    assert not {"script", "iframe", "object", "form", "link"} & set(page.tags)
    looks = {words: look for look, words in page.rows if words.startswith("early exit")}
    assert looks["early exit, T = 1"] == "sampled"
    assert looks["early exit"] == "greedy"
    table = strategy_table(report)
    order = dict(table.orders)
    names = [str(row[0]) for row in table.rows]
    for title, wanted in (
        ("speedup", ["early exit + n-gram", "early exit", "early exit, T = 1"]),
        ("α", ["early exit", "early exit + n-gram", "early exit, T = 1"]),
        ("between tokens", ["early exit + n-gram", "early exit", "early exit, T = 1"]),
        ("name", ["early exit", "early exit + n-gram", "early exit, T = 1"]),
    ):
        assert [names[order[title].index(place)] for place in range(3)] == wanted, title
    style = next(style for style in page.styles if "--by" in style)
    assert style == "".join(f"--by{at}:{places[0]};" for at, places in enumerate(order.values(), 1))
    assert len(order) <= 7, "the style sheet knows seven orders"


def test_rows_without_a_figure_come_last() -> None:
    rows = [measured_row("early_exit", 1.2, 0.5), measured_row("early_exit:ngram", 1.1, 0.6)]
    rows[0]["memory"]["extra_bytes"] = None
    rows[0]["extra"]["latency"] = None
    found = dict(orders(rows))
    assert found["memory"] == found["first token"] == (1, 0)


def test_lossy_by_design_is_no_failure() -> None:
    report = sample_report()
    report["strategies"][0]["lossless"] |= {"claimed": False, "verdict": "fail"}
    page = render_html(report)
    assert 'class="badge lossy"' in page
    assert 'class="badge fail"' not in page
    assert "| early exit | E=2, γ=3 | lossy |" in render_markdown(report)


def test_a_failed_row_stays_in_sight_and_what_does_not_apply_is_folded_away() -> None:
    report = sample_report()
    report["strategies"][-1] = absent_row("ctc_draft", "failed", "RuntimeError: broken")
    shown, _, folded = render_html(report).partition("<details>")
    assert "RuntimeError: broken" in shown
    assert "this checkpoint has no experts" not in shown
    assert "this checkpoint has no experts" in folded


def test_the_noise_of_a_report_stands_in_every_form() -> None:
    report = sample_report()
    line = "plain decoding against itself: 1.00× (0.99–1.02); differences below 2.1 % are this report's own noise"
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(report, console=console)
    shown = console.export_text()
    for text in (render_markdown(report), html.unescape(render_html(report)), shown):
        assert line in text
    assert "again" not in shown.replace(line, "")


def test_a_noise_of_more_than_all_says_that_nothing_can_be_told() -> None:
    report = sample_report()
    again = next(row for row in report["baselines"] if row.get("extra", {}).get("again"))
    again["extra"]["again"]["noise"] = 225.6
    text = render_markdown(report)
    assert "22560" not in text
    assert "against itself: too short to tell, so that no row can be called faster" in text


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
