"""Streams whose text changes: cut from local text, decoded with state that goes on, plotted and tabled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus.shift_text import KINDS, dialogue, shift_streams
from ssd_infer.engine.target import Target
from ssd_infer.errors import DataError
from ssd_infer.evaluation import bench, evaluate
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.carried import carry
from ssd_infer.evaluation.studies import Round, listed_rows
from ssd_infer.report.charts import draw_charts
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import validate
from ssd_infer.report.table import plots_of, tables_of
from ssd_infer.strategies import streams as stream_module
from ssd_infer.strategies.skip_layers import stream_study
from ssd_infer.strategies.stream_report import TITLE
from ssd_infer.strategies.streams import BIN
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget
from tests.conftest import build_model
from tests.report.sample import measured_row, sample_report
from tests.strategies.skip_layers.test_skip_swift import prepare


class Bytes:
    """A tokenizer of one id a byte."""

    eos_token_id = None

    def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


def text_of(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def test_a_stream_is_prose_then_code_then_dialogue() -> None:
    streams = shift_streams(Bytes(), 3, 300, seed=0)
    assert streams == shift_streams(Bytes(), 3, 300, seed=0)
    assert streams != shift_streams(Bytes(), 3, 300, seed=1)
    assert [len(stream) for stream in streams] == [len(KINDS)] * 3
    for stream in streams:
        assert all(0 < len(ids) <= 300 for ids in stream)
        assert text_of(stream[2]).count("Q: What does ") >= 2
        assert text_of(stream[2]).endswith("?\nA:")
    with pytest.raises(DataError, match="no tokenizer"):
        shift_streams(None, 1, 300, seed=0)


def test_answers_belong_to_their_questions() -> None:
    import random

    text = dialogue(random.Random(0), "test", 100)
    pairs = [part for part in text.strip().split("\n\n") if part]
    assert all(part.startswith("Q: What does ") and "\nA:" in part for part in pairs)


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    model = prepare(build_model(layers=5, vocab_size=256, max_position_embeddings=1024), 5)
    monkeypatch.setattr(stream_module, "FEWEST_TOKENS", 20)
    settings = EvalSettings(checkpoint="-", samples=2, max_new_tokens=20, prompt_tokens=24)
    streams = shift_streams(Bytes(), 2, 24, seed=0)
    one = EvalContext(
        settings, model, Bytes(), Target.of(model), [], [], [], Budget(0), lambda _line: None, streams
    )
    moment = one.budget.deadline(1.0)
    found = Round(one, "streams", Sampling(), moment, moment).run(listed_rows(one, Sampling()))
    assert one.notes == []
    return {name: facts["task_shift"] for name, facts in found.facts.items()}


def test_every_way_has_its_curve_and_its_kinds(studied: dict[str, Any]) -> None:
    assert set(studied) == {"swift", "skip_set", "early_exit:del"}
    for facts in studied.values():
        assert (facts["streams"], facts["per_turn"], facts["bin"]) == (2, 20, BIN)
        assert [kind["name"] for kind in facts["kinds"]] == list(KINDS)
        for name in ("drafted", "accepted"):
            assert sum(point[name] for point in facts["curve"]) == sum(kind[name] for kind in facts["kinds"])
        assert all(kind["accepted"] <= kind["drafted"] for kind in facts["kinds"])
    assert "found on prose" in studied["skip_set"]["note"]
    assert sum(kind["drafted"] for kind in studied["skip_set"]["kinds"]) > 0
    json.dumps(studied)


def test_the_study_is_tabled_and_plotted(studied: dict[str, Any]) -> None:
    report = sample_report()
    assert TITLE not in render_markdown(report)
    for name in ("swift", "skip_set"):
        row = measured_row(name, 1.2, 0.8)
        row["extra"]["task_shift"] = json.loads(json.dumps(studied[name]))
        report["strategies"] = [old for old in report["strategies"] if old["name"] != name] + [row]
    assert carry(report["strategies"]) == []
    validate(report)
    ((_, table),) = (found for found in tables_of(report["strategies"]) if found[1].title == TITLE)
    assert [row[0] for row in table.rows] == ["swift", "skip_set"]
    ((_, plot),) = (found for found in plots_of(report["strategies"]) if found[1].title == TITLE)
    assert [one.name for one in plot.series] == ["swift", "skip_set"]
    assert [mark.label for mark in plot.marks] == list(KINDS)
    assert TITLE in render_markdown(report)
    assert f"2 rows: {TITLE}" in [chart.title for chart in draw_charts(report)]


def test_a_study_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    build_model(layers=3, eos_token_id=2).save_pretrained(folder)
    (folder / "prompts.jsonl").write_text(json.dumps({"ids": [5, 6, 7, 8]}))
    monkeypatch.setattr(bench, "shift_streams", lambda *_: [[[5], [6], [7]]])

    def fails(*_: Any) -> Any:
        raise RuntimeError("no such stream")

    monkeypatch.setattr(stream_study, "decode_streams", fails)
    report = evaluate(
        EvalSettings(
            checkpoint=str(folder),
            tasks=[f"file:{folder}/prompts.jsonl", "task_shift"],
            draft="swift",
            temperatures=[0.0],
            samples=1,
            repeats=1,
            max_new_tokens=4,
            threads=1,
            device="cpu",
            grid=False,
        )
    )
    assert any(
        "task_shift failed: RuntimeError: no such stream" in note for note in report["verdict"]["warnings"]
    )
