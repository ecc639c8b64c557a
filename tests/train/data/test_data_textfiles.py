"""One reader for all text files: which encodings it takes, and where it says that something else is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssd_infer.corpus import textfiles
from ssd_infer.corpus.prompts import build_tasks
from ssd_infer.corpus.textfiles import read_lines, read_objects, read_whole
from ssd_infer.errors import DataError
from ssd_infer.families.speech.utterances import read_manifest
from ssd_train.config.schema import LocalTextConfig
from ssd_train.data.local import find_files, read_files
from ssd_train.data.speech.asterisk import transcripts
from ssd_train.recipes import registry as recipes
from tests.train.diffusion_support import OBJECTIVES, diffusion_root
from tests.train.support import base_model, llama_tokenizer

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
TEXT = "erste Zeile, ümlaut\nzweite 日本語 🎈\r\n\nvierte \u2028 noch dieselbe"


def encoded(text: str, encoding: str) -> bytes:
    """Return `text` in an encoding, with a byte order mark where it needs one."""
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    return (mark + text).encode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("chunk", [3, 5, 1 << 20])
def test_lines_are_the_same_in_every_encoding(
    encoding: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textfiles, "_CHUNK", chunk)
    (tmp_path / "a.txt").write_bytes(encoded(TEXT, encoding))
    assert [line for _, line in read_lines(tmp_path / "a.txt", "key")] == TEXT.replace("\n", "\n\0").split(
        "\0"
    )
    assert [number for number, _ in read_lines(tmp_path / "a.txt", "key")] == [1, 2, 3, 4]
    assert read_whole(tmp_path / "a.txt", "key") == TEXT
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(encoded(TEXT, encoding)))
    assert read_whole(tmp_path / "a.txt.gz", "key") == TEXT


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    for content in (b"", b"\xef\xbb\xbf", b"\xff\xfe"):
        (tmp_path / "a.txt").write_bytes(content)
        assert list(read_lines(tmp_path / "a.txt", "key")) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"fine\ncaf\xe9 au lait\n",
            r"a\.txt:2 is not UTF-8 \(byte 0xe9 at column 4, offset 8 of the file\)",
        ),
        (b"\xef\xbb\xbffine\ncaf\xe9", r"a\.txt:2 is not UTF-8 \(byte 0xe9 at column 4, offset 11"),
        (b"cut \xe2\x82", r"a\.txt:1 is not UTF-8 \(byte 0xe2 at column 5, offset 4 of the file\)"),
        (b"\xff\xfea\x00\x00\xd8b\x00", r"a\.txt is not UTF-16 \(byte 0x00 at offset 4 of the file\)"),
        (b"\xff\xfea\x00b", r"a\.txt is not UTF-16 \(byte 0x62 at offset 4 of the file\)"),
        (
            "without a mark".encode("utf-16-le"),
            r"holds a zero byte \(at offset 1 .* UTF-16 without a byte order mark",
        ),
        (b"\x80", r"a\.txt:1 is not UTF-8 \(byte 0x80 at column 1, offset 0"),
    ],
)
@pytest.mark.parametrize("chunk", [2, 1 << 20])
def test_what_is_no_text_is_named_by_file_line_and_byte(
    content: bytes, said: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textfiles, "_CHUNK", chunk)
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"^data\.path: .*{said}.*iconv -f") as caught:
        list(read_lines(tmp_path / "a.txt", "data.path"))
    assert "\n" not in str(caught.value)


def test_a_damaged_archive_is_one_sentence(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT.encode() * 99)
    for content in (packed[:-20], b"no archive", packed[:30] + b"xxxx" + packed[34:]):
        (tmp_path / "a.txt.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"^data\.path: .*a\.txt\.gz cannot be read"):
            read_whole(tmp_path / "a.txt.gz", "data.path")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": ', r"a\.jsonl:3 is not JSON: .* at column \d+ \(got '\{\"a\":'\)"),
        ("[1]", r"a\.jsonl:3 must be a JSON object \(got list\)"),
        ('{"a": ' + "9" * 5000 + "}", r"a\.jsonl:3 is not JSON: Exceeds the limit"),
        ("[" * 200_000, r"a\.jsonl:3 is not JSON: .*recursion"),
    ],
)
def test_a_line_that_is_no_json_is_named_by_file_and_line(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n' + line + "\n")
    with pytest.raises(DataError, match=rf"^data\.path: .*{said}"):
        list(read_objects(tmp_path / "a.jsonl", "data.path"))


# -- whoever reads text -----------------------------------------------------------------------------------------------

ROWS = [{"ask": f"ältere Frage {number}", "text": f"Antwort \u2028 {number}"} for number in range(12)]


def lines(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def pairs(tmp_path: Path, path: Path) -> list[tuple[str, str]]:
    """Return prompts and answers of all samples of a run on `path`, sorted."""
    config = replace(OBJECTIVES["llada_sft"], logit_shift=True)
    cfg = replace(diffusion_root(tmp_path, config, max_steps=1), model=base_model(tmp_path))
    source = LocalTextConfig(path=str(path), prompt_field="ask", block_size=64, add_bos=False)
    cfg = replace(cfg, data=replace(source, validation_share=0.2))
    found: Any = recipes.build(config).build_data(cfg, cfg.run_dir)
    decode = found.tokenizer.decode
    samples = [*found.train.samples, *found.validation.samples]
    return sorted((decode(prompt), decode(answer)) for prompt, answer in samples)


def as_folder(folder: Path) -> Path:
    (folder / "a.jsonl").write_text(lines(ROWS[:5]), "utf-8")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.ndjson").write_text(lines(ROWS[5:9]), "utf-8")
    pq.write_table(
        pa.table({"ask": [r["ask"] for r in ROWS[9:]], "text": [r["text"] for r in ROWS[9:]]}),
        folder / "c.pq",
    )
    (folder / "README.md").write_text("about the pairs")
    return folder


def as_glob(folder: Path) -> Path:
    (folder / "a1.jsonl").write_text(lines(ROWS[:6]), "utf-8")
    (folder / "a2.jsonl").write_text(lines(ROWS[6:]), "utf-8")
    (folder / "b.jsonl").write_text("not looked at")
    return folder / "a*.jsonl"


def with_mark(folder: Path) -> Path:
    (folder / "a.jsonl").write_text(lines(ROWS), "utf-8-sig")
    return folder / "a.jsonl"


def in_utf16(folder: Path) -> Path:
    (folder / "a.jsonl").write_text(lines(ROWS) + "\n\n", "utf-16")
    return folder / "a.jsonl"


@pytest.mark.parametrize("make", [as_folder, as_glob, with_mark, in_utf16])
def test_pairs_come_from_all_that_text_comes_from(make: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    assert pairs(tmp_path, make(folder)) == sorted((row["ask"], row["text"]) for row in ROWS)


def test_pairs_in_latin_1_or_in_no_table_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS).encode("latin-1", "replace"))
    with pytest.raises(
        DataError, match=r"^data\.path: .*a\.jsonl:1 is not UTF-8 \(byte 0xe4 at column 10, offset 9"
    ):
        pairs(tmp_path, tmp_path / "a.jsonl")
    (tmp_path / "a.txt").write_text("a question, and its answer")
    with pytest.raises(DataError, match=r"^data\.path: must be one of .*\.jsonl.* \(got '.*a\.txt'\)"):
        pairs(tmp_path, tmp_path / "a.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"^data\.path: the directory holds no JSONL or Parquet file"):
        pairs(tmp_path, tmp_path / "folder")


def test_prose_manifests_transcripts_and_prompts_are_read_by_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("größer\n", "utf-16")
    (tmp_path / "b.jsonl").write_text('{"text": "schöner"}\n', "utf-16")
    found = read_files(find_files(str(tmp_path), "data.path"), "text")
    assert [item.text for item in found] == ["größer\n", "schöner"]
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav", "text": "straße"}\n', "utf-8-sig")
    assert read_manifest(tmp_path / "m.jsonl")[0].text == "straße"
    (tmp_path / "t.txt").write_bytes(b"one: eins\ntwo: f\xfcnf\n")
    with pytest.raises(DataError, match=r"t\.txt:2 is not UTF-8"):
        transcripts(tmp_path / "t.txt")
    (tmp_path / "p.jsonl").write_text('{"text": "alpha \u2028 beta"}\n{"text": "gamma"}\n', "utf-8-sig")
    task = build_tasks([f"file:{tmp_path / 'p.jsonl'}"], llama_tokenizer(), 5, 40, 0)[0]
    assert llama_tokenizer().decode(task.prompts[0]) == "<s>alpha \u2028 beta"
    (tmp_path / "p.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"^tasks: .*p\.txt:1 is not UTF-8"):
        build_tasks([f"file:{tmp_path / 'p.txt'}"], llama_tokenizer(), 5, 40, 0)


def test_the_held_out_file_is_named_by_its_own_key(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"^data\.validation_path: .*not UTF-8"):
        list(read_files([tmp_path / "a.txt"], "text", "data.validation_path"))
