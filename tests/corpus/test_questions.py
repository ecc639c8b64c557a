"""Spec-Bench and SPEED-Bench files: read by category, and refused by file, line, rule and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssd_infer.corpus import build_tasks, calibrated_on_measured, calibration_prompts, check_prompt_files
from ssd_infer.corpus.questions import PLACEHOLDER
from ssd_infer.errors import ConfigError, DataError
from tests.corpus.tokenizers import Letters, Templated, text_of

SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Now without rhyme."]},
    {"question_id": 82, "category": "writing", "turns": ["Write a letter.", "Shorter."]},
    {"question_id": 241, "category": "translation", "turns": ["Translate: eins"], "reference": ["one"]},
    {"question_id": 83, "category": "writing", "turns": ["Write a riddle.", "Solve it."]},
    {"question_id": 242, "category": "translation", "turns": ["Translate: zwei"]},
    {"question_id": 401, "category": "rag", "turns": ["Who, by this text?"]},
]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def speed_bench(path: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    """Write the columns of SPEED-Bench."""
    kinds = [("question_id", pa.string()), ("category", pa.string()), ("sub_category", pa.string())]
    schema = pa.schema([*kinds, ("turns", pa.list_(pa.string())), ("multiturn", pa.bool_())])
    full = [{"question_id": "q", "sub_category": None, "multiturn": False} | row for row in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=more.get("schema", schema)), path)
    return path


def test_spec_bench_is_a_task_a_category_and_asks_first_turns(tmp_path: Path) -> None:
    path = lines(tmp_path / "question.jsonl", SPEC_BENCH)
    tasks = build_tasks([f"spec_bench:{path}"], Templated(), 64, 3, seed=0)
    assert [task.name for task in tasks] == ["spec_bench/writing", "spec_bench/translation", "spec_bench/rag"]
    assert [text_of(prompt) for prompt in tasks[0].prompts] == [
        "[user]Write a poem.[end][assistant]",
        "[user]Write a letter.[end][assistant]",
    ]
    assert [text_of(prompt) for prompt in tasks[0].held_back] == ["[user]Write a riddle.[end][assistant]"]
    assert [len(task.prompts) for task in tasks] == [2, 1, 1]
    assert tasks[0].notes == (
        "spec_bench: 3 of 6 questions go on after an answer; their first turn is asked alone",
    )
    assert len(build_tasks([f"spec_bench:{path}"], Letters(), 1, 3, 0)[0].prompts) == 1


def test_parameters_are_chosen_on_the_questions_held_back(tmp_path: Path) -> None:
    path = lines(tmp_path / "question.jsonl", SPEC_BENCH)
    tasks = build_tasks([f"spec_bench:{path}"], Letters(), 64, 3, seed=0)
    measured = [prompt for task in tasks for prompt in task.prompts]
    chosen_on = calibration_prompts(tasks, Letters(), 6, 3)
    assert [text_of(prompt).strip() for prompt in chosen_on] == ["Write a riddle.", "Translate: zwei"]
    assert not any(prompt in measured for prompt in chosen_on)
    assert calibrated_on_measured(tasks) is None


def test_a_question_asked_twice_is_not_measured_and_chosen_on(tmp_path: Path) -> None:
    twice = [{"category": "a", "turns": [text]} for text in ("x", "y", "x")]
    tasks = build_tasks([f"spec_bench:{lines(tmp_path / 'q.jsonl', twice)}"], Letters(), 64, 3, seed=0)
    assert [text_of(prompt).strip() for prompt in tasks[0].prompts] == ["y"]
    assert [text_of(prompt).strip() for prompt in tasks[0].held_back] == ["x"]


def test_single_questions_are_chosen_on_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    single = lines(
        tmp_path / "q.jsonl", [{"category": "a", "turns": ["x"]}, {"category": "b", "turns": ["y"]}]
    )
    tasks = build_tasks([f"spec_bench:{single}"], Letters(), 64, 3, seed=0)
    said = calibrated_on_measured(tasks)
    assert said is not None
    assert "spec_bench/a, spec_bench/b" in said
    assert len(calibration_prompts(tasks, Letters(), 6, 3)) == 2
    beside = build_tasks(["stdlib_code", f"spec_bench:{single}"], Letters(), 2, 40, seed=0)
    assert calibrated_on_measured(beside) is None
    assert not any(prompt in tasks[0].prompts for prompt in calibration_prompts(beside, Letters(), 6, 40))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_speed_bench_as_lines_and_as_parquet(tmp_path: Path, kind: str) -> None:
    rows = [{"category": name, "turns": [f"{name} {n}"]} for n in range(3) for name in ("coding", "rag")]
    write = lines if kind == "jsonl" else speed_bench
    tasks = build_tasks([f"speed_bench:{write(tmp_path / f'test.{kind}', rows)}"], Letters(), 64, 3, seed=0)
    assert [task.name for task in tasks] == ["speed_bench/coding", "speed_bench/rag"]
    assert [text_of(prompt).strip() for prompt in tasks[1].prompts] == ["rag 0", "rag 1"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"turns": ["x"]}, r"question\.jsonl:2: category is missing \(found turns\); add it"),
        ({"category": "a"}, r":2: turns is missing \(found category\)"),
        ({"category": None, "turns": ["x"]}, r":2: category is missing"),
        ({"category": 5, "turns": ["x"]}, r":2: category must be a name of 1 to 64 characters \(got 5\)"),
        ({"category": " ", "turns": ["x"]}, r":2: category must be a name"),
        ({"category": "a" * 65, "turns": ["x"]}, r":2: category must be a name"),
        ({"category": "a\nb", "turns": ["x"]}, r":2: category must be one line of printable"),
        ({"category": "a\u202eb", "turns": ["x"]}, r":2: category must be one line of printable"),
        ({"category": "a\ud800", "turns": ["x"]}, r":2: category must be one line of printable"),
        ({"category": "a", "turns": "x"}, r":2: turns must be a list of one message or more \(got 'x'\)"),
        ({"category": "a", "turns": []}, r":2: turns must be a list"),
        ({"category": "a", "turns": ["x", 7]}, r":2: turns\.1 must be text \(got 7\); write the user's"),
        ({"category": "a", "turns": [" \n"]}, r":2: turns\.0 must be text"),
        ({"category": "a", "turns": [{"role": "user"}]}, r":2: turns\.0 must be text"),
        ({"category": "a", "turns": ["\ud800"]}, r":2: turns\.0 holds half of a surrogate pair"),
        ({"category": "a", "turns": [PLACEHOLDER + " FROM"]}, r":2: turns\.0 is a placeholder.*prepare_data"),
        ([], r":2 must be a JSON object"),
    ],
)
def test_a_malformed_line_is_refused_before_any_tokenizer_is_there(
    tmp_path: Path, row: Any, said: str
) -> None:
    path = lines(tmp_path / "question.jsonl", [SPEC_BENCH[0], row, SPEC_BENCH[1]])
    for name in (f"spec_bench:{path}", f"speed_bench:{path}"):
        with pytest.raises(DataError, match=said) as caught:
            check_prompt_files(["auto", name])
        assert str(caught.value).startswith(f"tasks: {tmp_path}")
        assert "\n" not in str(caught.value)


def test_malformed_parquet_is_refused_by_row(tmp_path: Path) -> None:
    good = {"category": "a", "turns": ["x"]}
    for number, (row, said) in enumerate(
        [
            ({"category": None, "turns": ["x"]}, r"row 2: category is missing"),
            ({"category": "a", "turns": None}, r"row 2: turns is missing"),
            ({"category": "a", "turns": ["x", None]}, r"row 2: turns\.1 must be text \(got None\)"),
        ]
    ):
        path = speed_bench(tmp_path / f"{number}.parquet", [good, row])
        with pytest.raises(DataError, match=said):
            check_prompt_files([f"speed_bench:{path}"])
    other = pa.schema([("category", pa.string()), ("turns", pa.int64())])
    path = tmp_path / "ints.parquet"
    pq.write_table(pa.Table.from_pylist([{"category": "a", "turns": 3}], schema=other), path)
    with pytest.raises(DataError, match=r"row 1: turns must be a list of one message or more \(got 3\)"):
        check_prompt_files([f"speed_bench:{path}"])
    pq.write_table(pa.table({"prompt": ["x"]}), path)
    with pytest.raises(DataError, match=r"row 1: category is missing"):
        check_prompt_files([f"speed_bench:{path}"])


def test_bytes_that_are_no_text_in_parquet_are_one_sentence(tmp_path: Path) -> None:
    raw = pa.array([b"\xff\xfe"], type=pa.binary())
    broken = pa.StringArray.from_buffers(1, raw.buffers()[1], raw.buffers()[2])
    path = tmp_path / "broken.parquet"
    pq.write_table(pa.table({"category": broken, "turns": pa.array([["x"]])}), path)
    with pytest.raises(DataError, match=r"broken\.parquet is not a readable Parquet file"):
        check_prompt_files([f"speed_bench:{path}"])


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1 and then nothing PAR1"])
def test_what_is_no_parquet_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.parquet is not a readable Parquet file .*; download or write"):
        check_prompt_files([f"speed_bench:{path}"])


def test_empty_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no question"):
        check_prompt_files([f"spec_bench:{lines(tmp_path / 'e.jsonl', [])}"])
    with pytest.raises(DataError, match="cannot be read"):
        check_prompt_files([f"spec_bench:{tmp_path / 'none.jsonl'}"])
    with pytest.raises(ConfigError, match=r"file:PATH or spec_bench:PATH or speed_bench:PATH.*mt_bench:x"):
        build_tasks(["mt_bench:x"], Letters(), 2, 9, 0)
