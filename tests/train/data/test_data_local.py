"""Text, JSONL and Parquet files: what is read, and what each kind of bad file is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssd_infer.errors import DataError
from ssd_train.config.schema import LocalTextConfig
from ssd_train.data.local import find_files, local_source, read_files


def texts(path: Path, field: str = "text") -> list[str]:
    return [item.text for item in read_files(find_files(str(path), "data.path"), field)]


def write_jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return path


def test_all_three_formats_of_one_directory_are_read_in_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\nfile, with ümlaut\n", encoding="utf-8")
    write_jsonl(tmp_path / "b.jsonl", [{"text": "second"}, {"text": "third", "other": 1}])
    pq.write_table(pa.table({"text": ["fourth", "fifth"], "id": [1, 2]}), tmp_path / "c.parquet")
    (tmp_path / "ignored.bin").write_bytes(b"\x00")
    assert texts(tmp_path) == ["first\nfile, with ümlaut\n", "second", "third", "fourth", "fifth"]


def test_a_glob_and_another_field(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a1.jsonl", [{"body": "one"}])
    write_jsonl(tmp_path / "a2.jsonl", [{"body": "two"}])
    write_jsonl(tmp_path / "b.jsonl", [{"text": "no"}])
    assert texts(tmp_path / "a*.jsonl", "body") == ["one", "two"]


def test_a_long_text_file_comes_in_pieces_of_one_document(tmp_path: Path) -> None:
    content = "".join(f"line {i} of a long file\n" for i in range(20_000))
    path = tmp_path / "long.txt"
    path.write_text(content)
    pieces = list(read_files([path], "text"))
    assert len(pieces) > 3
    assert "".join(item.text for item in pieces) == content
    assert [item.ends for item in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello\n")
    assert texts(tmp_path / "a.txt") == ["hello\n"]


def bad_json(path: Path) -> Path:
    target = path / "x.jsonl"
    target.write_text('{"text": "fine"}\n{"text": \n')
    return target


def list_json(path: Path) -> Path:
    return write_jsonl(path / "x.jsonl", [["text"]])


def other_field(path: Path) -> Path:
    return write_jsonl(path / "x.jsonl", [{"body": "a", "id": 3}])


def number_field(path: Path) -> Path:
    return write_jsonl(path / "x.jsonl", [{"text": "fine"}, {"text": 3}])


def null_parquet(path: Path) -> Path:
    pq.write_table(pa.table({"text": ["a", None]}), path / "x.parquet")
    return path / "x.parquet"


def other_column(path: Path) -> Path:
    pq.write_table(pa.table({"body": ["a"]}), path / "x.parquet")
    return path / "x.parquet"


def cut_parquet(path: Path) -> Path:
    target = path / "x.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000]}), target)
    target.write_bytes(target.read_bytes()[:-20])
    return target


def latin_text(path: Path) -> Path:
    (path / "x.txt").write_bytes(b"fine\ncaf\xe9\n")
    return path / "x.txt"


def half_surrogate(path: Path) -> Path:
    (path / "x.jsonl").write_text('{"text": "\\ud800"}\n')
    return path / "x.jsonl"


def unknown_suffix(path: Path) -> Path:
    (path / "x.docx").write_text("a")
    return path / "x.docx"


def nothing(path: Path) -> Path:
    return path / "missing.txt"


def empty_directory(path: Path) -> Path:
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (bad_json, [r"x\.jsonl:2 is not JSON", "one JSON object on each line"]),
        (list_json, [r"x\.jsonl:1 must be a JSON object", "got list"]),
        (other_field, ["data.text_field", r"x\.jsonl:1", "found body, id", "try data.text_field=body"]),
        (number_field, ["data.text_field", "got int", r"x\.jsonl:2"]),
        (null_parquet, ["data.text_field", "got NoneType", "row 1"]),
        (other_column, ["data.text_field", "found body", "try data.text_field=body"]),
        (cut_parquet, ["data.path", "not a readable Parquet file"]),
        (latin_text, [r"x\.txt:2 is not UTF-8", "0xe9 at column 4", "iconv"]),
        (half_surrogate, [r"x\.jsonl:1", "surrogate"]),
        (unknown_suffix, ["data.path", r"\.docx", r"\.jsonl"]),
        (nothing, ["data.path", "no such file", r"missing\.txt"]),
        (empty_directory, ["data.path", "holds no text"]),
    ],
)
def test_bad_input_is_one_clear_error(make: Callable[[Path], Path], said: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        texts(make(tmp_path))
    for part in said:
        assert caught.match(part)
    assert "\n" not in str(caught.value)


def test_held_out_rows_are_apart_and_equal_texts_stay_together(tmp_path: Path) -> None:
    rows = [{"text": f"document {i % 150}"} for i in range(300)]
    source = local_source(
        LocalTextConfig(path=str(write_jsonl(tmp_path / "a.jsonl", rows)), validation_share=0.2)
    )
    train = [item.text for item in source.train()]
    held = [item.text for item in source.validation()]
    assert len(train) + len(held) == 300
    assert 20 < len(held) < 110
    assert not set(train) & set(held)


def test_a_validation_path_takes_nothing_from_training(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "a.jsonl", [{"text": f"t{i}"} for i in range(20)])
    held = write_jsonl(tmp_path / "b.jsonl", [{"text": "held"}])
    source = local_source(LocalTextConfig(path=str(train), validation_path=str(held), validation_share=0.5))
    assert [item.text for item in source.train()] == [f"t{i}" for i in range(20)]
    assert [item.text for item in source.validation()] == ["held"]


def test_the_fingerprint_follows_content_and_not_place(tmp_path: Path) -> None:
    def fingerprint(folder: str, text: str, share: float = 0.1) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = write_jsonl(tmp_path / folder / "a.jsonl", [{"text": text}])
        return local_source(LocalTextConfig(path=str(path), validation_share=share)).fingerprint

    assert fingerprint("one", "x") == fingerprint("two", "x")
    assert fingerprint("one", "x") != fingerprint("one", "y")
    assert fingerprint("one", "x") != fingerprint("one", "x", 0.2)
