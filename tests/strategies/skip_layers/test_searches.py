"""Several searched methods as rows of one report: who is asked for, what is said of each search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.evaluation import evaluate
from ssd_infer.evaluation.causal.causal_kind import search_seconds
from ssd_infer.evaluation.strategies import select_candidates
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.rows import ok_rows
from ssd_infer.report.table import tables_of
from ssd_infer.strategies.skip_layers import saved_search as store
from ssd_infer.strategies.skip_layers import skip_calibration as calibration
from ssd_infer.strategies.skip_layers.search_report import TITLE
from ssd_infer.strategies.skip_layers.search_result import SearchResult
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.rounds import Prediction
from tests.conftest import build_model
from tests.registered import know_only

SEARCHED = ("skip_set", "skip_set+bayes", "swift", "early_exit+del")


@pytest.fixture(autouse=True)
def searched_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    know_only(monkeypatch, SEARCHED)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints" / "step-7"
    build_model(layers=4, eos_token_id=2).save_pretrained(folder)
    lines = [json.dumps({"ids": [5 + (7 * i * j + j) % 90 for j in range(8)]}) for i in range(1, 4)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def report(checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    return evaluate(
        EvalSettings(
            checkpoint=str(checkpoint),
            draft="skip_layer",
            tasks=[f"file:{checkpoint}/prompts.jsonl"],
            out=str(tmp_path),
            samples=2,
            repeats=1,
            max_new_tokens=12,
            threads=1,
            device="cpu",
            grid=False,
            temperatures=[0.0],
            search_seconds=0.2,
            peers=False,
        )
    )


def test_every_method_is_a_row_of_one_report(report: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in report["strategies"] if row["status"] == "ok"}
    assert set(rows) == {"skip_set", "skip_set:bayes", "swift", "early_exit:del"}
    for name, method in (("skip_set", "dp"), ("skip_set:bayes", "bayes")):
        facts = rows[name]["extra"]["search"]
        assert facts["method"] == method
        assert facts["seconds"] > 0
        assert {"alpha", "c", "predicted_speedup", "skip_attention", "skip_mlp"} <= set(facts)
    assert rows["skip_set:bayes"]["extra"]["search"]["candidates"] < 1000  # time ended it
    assert rows["skip_set"]["extra"]["fell_back_to_plain"] in (True, False)
    assert report["peers"] == []
    (table,) = (table for _, table in tables_of(ok_rows(report)) if table.title == TITLE)
    lines = {cells[0]: dict(zip(table.columns, cells, strict=True)) for cells in table.rows}
    assert {"skip_set", "skip_set:bayes", "swift"} <= set(lines)
    assert lines["skip_set:bayes"]["method"] == "bayes"
    assert lines["swift"]["method"] == "while decoding"
    for rendered in (render_markdown(report), render_html(report)):
        assert TITLE in rendered


@pytest.mark.parametrize(
    ("wanted", "present"),
    [
        ("all", {"skip_set", "swift", "early_exit:del"}),
        ("skip_layer", {"skip_set", "skip_set:bayes", "swift", "early_exit:del"}),
        ("skip_set", {"skip_set"}),
        ("skip_set+bayes", {"skip_set:bayes"}),
    ],
)
def test_who_takes_part(wanted: str, present: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(layers=4)
    target = Target.of(model)
    prediction = Prediction(3, 0.0, 0.8, 3.4, 3.0, 0.4, 1.1, 0.9)
    found = SearchResult(SkipSet.of([1], [1]), prediction, "bayes", 1.0, 3)
    asked: list[float] = []

    def search(*arguments: Any) -> SearchResult:
        asked.append(arguments[-1])
        return found

    monkeypatch.setattr(calibration, "_search", search)
    prompts = [[2, 3, 4, 5, 6, 7, 8, 9]]
    field = select_candidates(model, target, wanted, {}, Sampling(), prompts, search_seconds=3.5)
    assert {item.name for item in field.contenders} == present
    absent = {row.name: row.reason for row in field.absent}
    if wanted == "all":
        assert "draft=skip_set+bayes or draft=skip_layer" in absent["skip_set:bayes"]
    if "skip_set:bayes" in present:
        assert 3.5 in asked
        assert field.searches["skip_set:bayes"]["method"] == "bayes"


def test_the_time_of_a_search_is_bounded() -> None:
    assert search_seconds(EvalSettings(max_minutes=10)) == pytest.approx(30)
    assert search_seconds(EvalSettings(max_minutes=0)) == 60
    assert search_seconds(EvalSettings(max_minutes=600)) == 60
    assert search_seconds(EvalSettings(max_minutes=1, search_seconds=90)) == 90


def test_saved_sets_of_several_methods_live_together(checkpoint: Path, tmp_path: Path) -> None:
    model = build_model(layers=4)
    target = Target.of(model)
    for method, layer, speedup in (("dp", 1, 1.2), ("bayes", 2, 1.1), ("bayes", 3, 1.15)):
        prediction = Prediction(3, 0.0, 0.8, 3.4, 3.0, 0.4, 1.1, speedup)
        store.save(tmp_path, target, False, SearchResult(SkipSet.of([layer], []), prediction, method, 1.0, 1))
    found = {method: store.load(tmp_path, target, False, method)[0] for method in ("dp", "bayes", None)}
    assert {key: item.skips.attention for key, item in found.items() if item} == {
        "dp": {1},
        "bayes": {3},
        None: {1},
    }
