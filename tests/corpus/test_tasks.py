"""Prompt sets: deterministic, held out, cut to length, and readable errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_infer.corpus import (
    build_tasks,
    calibrated_on_measured,
    calibration_prompts,
    check_prompt_files,
    held_out_ids,
)
from ssd_infer.corpus.stdlib import documents
from ssd_infer.errors import ConfigError, DataError
from tests.corpus.tokenizers import Letters, text_of


def test_auto_is_code_and_prose_and_repeats_exactly() -> None:
    first = build_tasks(["auto"], Letters(), 5, 40, seed=0)
    again = build_tasks(["auto", "stdlib_code"], Letters(), 5, 40, seed=0)
    assert [task.name for task in first] == ["stdlib_code", "stdlib_prose"]
    assert [task.sha256 for task in first] == [task.sha256 for task in again]
    assert all(len(prompt) == 40 for task in first for prompt in task.prompts)
    assert all(len(task.prompts) == 5 for task in first)
    assert build_tasks(["auto"], Letters(), 5, 40, seed=1)[0].sha256 != first[0].sha256


def test_prompts_come_from_test_documents_and_calibration_from_validation() -> None:
    tasks = build_tasks(["stdlib_code"], Letters(), 4, 40, seed=0)
    held_out = [document.text for document in documents("test", "code")]
    training = "\0".join(document.text for document in documents("train", "code"))
    for prompt in tasks[0].prompts:
        assert any(text_of(prompt) in text for text in held_out)
    validation = [document.text for document in documents("validation", "code")]
    calibration = calibration_prompts(tasks, Letters(), 3, 40)
    assert len(calibration) == 3
    assert all(any(text_of(prompt) in text for text in validation) for prompt in calibration)
    assert sum(text_of(prompt) in training for prompt in tasks[0].prompts) == 0


def test_held_out_windows_are_test_text() -> None:
    source, windows = held_out_ids(build_tasks(["auto"], Letters(), 2, 20, 0), Letters(), 400, 100)
    assert "test split" in source
    assert [len(window) for window in windows] == [100] * 4


def test_file_prompts_as_text_ids_and_paragraphs(tmp_path: Path) -> None:
    lines = [{"prompt": "abc"}, {"text": "de"}, {"ids": [7, 8, 9]}, {"prompt": [4, 5, 6]}]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    task = build_tasks([f"file:{path}"], Letters(), 9, 2, seed=0)[0]
    assert task.prompts == [[98, 99], [100, 101], [8, 9], [5, 6]]
    plain = tmp_path / "p.txt"
    plain.write_text("ab\n\ncd\n")
    assert [text_of(p).strip() for p in build_tasks([f"file:{plain}"], Letters(), 1, 9, 0)[0].prompts] == [
        "ab"
    ]
    assert calibration_prompts([task], Letters(), 3, 2) == [[5, 6], [8, 9], [100, 101]]
    said = calibrated_on_measured([task])
    assert said is not None
    assert said.endswith("(file:p.jsonl)")


def test_prompts_that_are_cut_are_counted_and_those_left_over_are_chosen_on(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"ids": [n] * n}) for n in range(1, 15)))
    task = build_tasks([f"file:{path}"], Letters(), 4, 2, seed=0)[0]
    assert task.prompts == [[1], [2, 2], [3, 3], [4, 4]]
    assert task.notes == (
        "file:p.jsonl: 2 of 4 prompts are longer than prompt_tokens=2; their ends alone are decoded",
    )
    assert calibration_prompts([task], Letters(), 3, 2) == [[5, 5], [6, 6], [7, 7]]
    assert len(task.held_back) == 8
    assert calibrated_on_measured([task]) is None
    assert build_tasks([f"file:{path}"], Letters(), 4, 20, seed=0)[0].notes == ()


def test_a_prompt_file_may_lie_below_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "p.jsonl").write_text('{"ids": [3]}')
    assert build_tasks(["file:~/p.jsonl"], Letters(), 4, 2, seed=0)[0].prompts == [[3]]


def test_held_out_text_of_long_prompts_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"ids": [n] * 100}) for n in range(1, 11)))
    tasks = build_tasks([f"file:{path}"], Letters(), 10, 500, seed=0)
    source, windows = held_out_ids(tasks, Letters(), 120, 30)
    assert source == "the prompts"
    assert windows == [[1] * 30, [4] * 30, [7] * 30, [10] * 30]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompt"),
        ("{", r"p\.jsonl:1 is not JSON"),
        ('{"other": 1}', r"p\.jsonl:1 has none of"),
        ('{"ids": ["7"]}', r"p\.jsonl:1: ids must be a list of whole numbers \(got \['7'\]\); correct"),
        ('{"ids": [7.5]}', r"p\.jsonl:1: ids must be"),
        ('{"ids": [true]}', r"p\.jsonl:1: ids must be"),
        ('{"ids": "7"}', r"p\.jsonl:1: ids must be"),
        ('{"text": {"a": 1}}', r"p\.jsonl:1: text must be text or a list"),
        ('{"prompt": 12}', r"p\.jsonl:1: prompt must be text or a list"),
        ('{"text": "a\\ud800"}', r"p\.jsonl:1: text holds half of a surrogate pair"),
        (None, "cannot be read"),
    ],
)
def test_unusable_files_say_what_is_wrong(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "p.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=said):
        build_tasks([f"file:{path}"], Letters(), 2, 9, 0)
    with pytest.raises(DataError, match=said):
        check_prompt_files(["auto", f"file:{path}"])


def test_unknown_task_and_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks: must be auto.*gsm8k"):
        build_tasks(["gsm8k"], Letters(), 2, 9, 0)
    with pytest.raises(ConfigError):
        build_tasks([], Letters(), 2, 9, 0)
    with pytest.raises(DataError, match="no tokenizer"):
        build_tasks(["stdlib_code"], None, 2, 9, 0)
