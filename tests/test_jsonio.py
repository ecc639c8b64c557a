"""Every JSON file is strict JSON, also where a number is none."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.jsonio import from_json, to_json
from ssd_infer.report.write import dump_json, write_report
from ssd_train.runs.checkpoints import CheckpointStore
from ssd_train.runs.metrics import MetricsFile
from tests.report.sample import sample_report

ROOT = Path(__file__).resolve().parents[1]


def strictly(text: str) -> Any:
    """Parse as a parser that keeps to the standard does: NaN and Infinity are errors."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def same(left: Any, right: Any) -> bool:
    """Tell whether two values are equal where NaN equals NaN."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return bool(left == right)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"loss": math.nan}, {"loss": None, "nonfinite": {"loss": "NaN"}}),
        ({"a": math.inf, "b": 1.5}, {"a": None, "b": 1.5, "nonfinite": {"a": "Infinity"}}),
        ({"a": [1, -math.inf]}, {"a": [1, None], "nonfinite": {"a/1": "-Infinity"}}),
        ({"a": [[math.nan]]}, {"a": [[None]], "nonfinite": {"a/0/0": "NaN"}}),
        ({"a/1": math.nan}, {"a/1": None, "nonfinite": {"a/1": "NaN"}}),
        ([{"x": {"y": math.nan}}], [{"x": {"y": None, "nonfinite": {"y": "NaN"}}}]),
        ({"a": None, "b": "NaN"}, {"a": None, "b": "NaN"}),
        ({"nonfinite": {"a": "other"}}, {"nonfinite": {"a": "other"}}),
    ],
)
def test_a_number_that_is_none_is_null_with_its_reason_and_comes_back(value: Any, written: Any) -> None:
    assert strictly(to_json(value)) == written
    assert same(from_json(to_json(value)), value)


def test_where_no_object_can_hold_the_reason_nothing_is_written() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        to_json([1.0, math.nan])


def test_a_file_of_an_earlier_version_is_read() -> None:
    assert same(from_json('{"loss": NaN, "x": [Infinity]}'), {"loss": math.nan, "x": [math.inf]})


def test_the_metrics_file_is_strict_json_also_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": 3.0}\n')  # an earlier version's
    file = MetricsFile(path)
    file.keep_until(2)
    file.write(2, {"eval_loss": math.nan, "eval_tau_sim": 1.0})
    file.write(3, {"grad_norm": math.inf})
    file = MetricsFile(path)
    file.keep_until(3)
    file.write(3, {"grad_norm": 1.0, "eval_loss": math.nan})
    assert [strictly(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": None, "nonfinite": {"loss": "NaN"}},
        {"step": 2, "loss": 3.0, "eval_loss": None, "eval_tau_sim": 1.0, "nonfinite": {"eval_loss": "NaN"}},
        {"step": 3, "grad_norm": 1.0, "eval_loss": None, "nonfinite": {"eval_loss": "NaN"}},
    ]


def test_a_checkpoints_record_is_strict_json_and_still_not_the_best(tmp_path: Path) -> None:
    def write(directory: Path) -> None:
        (directory / "ssd.json").write_text('{"step": 1}')

    store = CheckpointStore(tmp_path, 0)
    store.save(1, write, main=True, wait=lambda: None)
    store.annotate(1, {"tau_sim": math.nan, "validation_loss": math.inf, "exit_agreement": {"1": math.nan}})
    record = strictly((store.path(1) / "ssd.json").read_text())
    assert (record["tau_sim"], record["nonfinite"]["validation_loss"]) == (None, "Infinity")
    assert record["exit_agreement"] == {"1": None, "nonfinite": {"1": "NaN"}}
    assert store.best() is None


def test_a_report_with_a_number_that_is_none_in_its_free_part_is_written(tmp_path: Path) -> None:
    report = sample_report()
    report["strategies"][0]["extra"]["spread"] = math.nan
    found = strictly(write_report(report, tmp_path, [{"seconds": math.inf}]).read_text())
    assert found["strategies"][0]["extra"]["spread"] is None
    assert found["strategies"][0]["extra"]["nonfinite"] == {"spread": "NaN"}
    assert strictly((tmp_path / "samples.jsonl").read_text())["seconds"] is None
    assert strictly(dump_json({"a": math.nan}))["a"] is None


def _writes_by_itself(tree: ast.AST) -> list[int]:
    """Return the lines that call json.dump or json.dumps, but for what is only hashed."""
    hashed = {
        inner
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("hashlib.")
        for inner in ast.walk(call)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("json.dump", "json.dumps")
        and node not in hashed
    ]


def test_nothing_else_writes_json() -> None:
    files = [
        path for folder in ("ssd_infer", "ssd_train", "scripts") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 200
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line in _writes_by_itself(ast.parse(path.read_text(encoding="utf-8")))
        if path.name != "jsonio.py"
    }
    assert found == set()
