"""The embedded corpus: every passage once, fixed splits, readable text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ssd_infer.corpus import stdlib as stdlib_corpus
from ssd_infer.corpus.cleaning import clean_code, clean_prose, paragraphs, split_docstrings
from ssd_infer.corpus.stdlib import Document, documents, split_of
from ssd_infer.errors import DataError

SPLITS = ("train", "validation", "test")
ROOT = Path(__file__).resolve().parents[2]


def test_every_split_has_prose_and_code_and_most_text_is_for_training() -> None:
    for kind, least in (("prose", 300_000), ("code", 3_000_000)):
        sizes = {split: sum(len(item.text) for item in documents(split, kind)) for split in SPLITS}
        assert sizes["train"] > least
        assert 0.02 * sizes["train"] < sizes["validation"] < 0.3 * sizes["train"]
        assert 0.02 * sizes["train"] < sizes["test"] < 0.3 * sizes["train"]


def test_no_paragraph_of_prose_is_in_two_splits() -> None:
    seen: dict[str, str] = {}
    for split in SPLITS:
        for document in documents(split, "prose"):
            for paragraph in paragraphs(document.text):
                key = " ".join(paragraph.split())
                if len(key) >= 40:
                    assert seen.setdefault(key, split) == split


def test_held_out_code_is_not_in_training_code() -> None:
    def lines(text: str) -> set[str]:
        return {line for line in map(str.strip, text.split("\n")) if len(line) > 20}

    training = set().union(*(lines(item.text) for item in documents("train", "code")))
    for item in documents("test", "code"):
        own = lines(item.text)
        assert len(own & training) <= 0.6 * len(own), item.name


def test_docstrings_are_in_the_split_of_their_module() -> None:
    where = {item.name: split for split in SPLITS for item in documents(split, "code")}
    described = [(item.name, split) for split in SPLITS for item in documents(split, "prose")]
    pairs = [
        (where[name.removeprefix("docstrings/")], split)
        for name, split in described
        if name.removeprefix("docstrings/") in where
    ]
    assert len(pairs) > 100
    assert all(code == prose for code, prose in pairs)


def test_the_split_of_a_name_never_changes() -> None:
    assert [split_of(name) for name in ("argparse.py", "topics/types", "topics/formatstrings")] == [
        "train",
        "test",
        "test",
    ]


def test_the_corpus_is_the_same_in_another_process() -> None:
    code = "from ssd_infer.corpus import stdlib as stdlib_corpus; print(stdlib_corpus.fingerprint())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == stdlib_corpus.fingerprint()


@pytest.mark.parametrize(("split", "kind"), [("dev", "prose"), ("train", "poems")])
def test_an_unknown_split_or_kind_is_named(split: str, kind: str) -> None:
    with pytest.raises(DataError, match=r"dev|poems"):
        documents(split, kind)  # type: ignore[arg-type]


def test_a_python_without_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stdlib_corpus, "_library", lambda: tmp_path)
    monkeypatch.setattr(stdlib_corpus, "_topics", dict)
    with pytest.raises(DataError, match="data=local"):
        stdlib_corpus._corpus.__wrapped__()


def test_sources_leave_out_tests_packages_and_what_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a.py", "pkg/b.py", "test/c.py", "site-packages/d.py", "encodings/e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"name = '\xe9'\n")
    monkeypatch.setattr(stdlib_corpus, "_library", lambda: tmp_path)
    assert [name for name, _ in stdlib_corpus._sources()] == ["a.py", "pkg/b.py"]


def test_a_near_copy_is_dropped_and_a_different_text_kept() -> None:
    body = "\n".join(f"this is line number {i} of a module" for i in range(40))
    other = "\n".join(f"value_{i} = compute_something_else({i})" for i in range(40))
    items = [
        Document("a", body),
        Document("b", body + "\nand one more line at the end"),
        Document("c", other),
    ]
    assert [item.name for item in stdlib_corpus._without_near_copies(items)] == ["a", "c"]


def test_long_docstrings_leave_the_code_and_short_ones_stay() -> None:
    long_text = "Explain it at length. " * 30
    source = (
        f'"""{long_text}"""\nimport os\n\n\ndef short():\n    """Short."""\n    return os\n\n\n'
        f"def long():\n    '''First line.\n\n    {long_text}\n    '''\n    return 1\n"
        f'TEXT = """{long_text}"""\n'
    )
    code, docstrings = split_docstrings(source)
    assert len(docstrings) == 2
    assert docstrings[0] == long_text.strip()
    assert docstrings[1].startswith("First line.\n\nExplain")
    assert '"""Short."""' in code
    assert f'TEXT = """{long_text}"""' in code
    assert "def long():\n    return 1" in code


def test_quotes_inside_comments_and_strings_do_not_open_a_docstring() -> None:
    source = "# it's not a string\nx = '\"\"\"'\ny = \"'''\"\n" + "z = 1\n" * 100
    assert split_docstrings(source) == (source, [])


def test_tables_are_cut_and_code_around_them_is_kept() -> None:
    table = "".join(f"    '{name}': {name},\n" for name in range(100))
    cleaned = clean_code("d = {\n" + table + "}\nprint(d)\n\n\n\n\n\nx = 1\n" + "#" + "-" * 400 + "\n")
    assert cleaned.count("\n") < 15
    assert "print(d)" in cleaned
    assert "\n\n\n\n" not in cleaned


def test_prose_loses_underlines_only() -> None:
    assert clean_prose("Title\n*****\n\n\n\nText with ** stars.\n") == "Title\n\nText with ** stars.\n"
