"""Engine, tuning, evaluation and report know no strategy: no file of theirs holds the name of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ssd_infer.strategies.registry import infos

ROOT = Path(__file__).resolve().parents[2] / "ssd_infer"
FREE = ("engine", "tuning", "evaluation", "report")
WORDS = ("heads",)
"""Names that are words of the field as well, looked for in quotes alone."""


def strategy_names() -> set[str]:
    """Return the names of all strategies, and their parts before a plus."""
    return {part for name in infos() for part in (name, name.partition("+")[0])}


def named(text: str, names: set[str]) -> list[str]:
    """Return the lines of a file that hold one of `names` as a word, whatever its case."""
    words = sorted((re.escape(name) for name in names - set(WORDS)), key=len, reverse=True)
    quoted = [rf"(?<=[\"']){re.escape(name)}(?=[\"':])" for name in names & set(WORDS)]
    pattern = re.compile(
        "|".join([rf"(?<![A-Za-z0-9_])({'|'.join(words)})(?![A-Za-z0-9_])", *quoted]), re.IGNORECASE
    )
    return [line.strip() for line in text.splitlines() if pattern.search(line)]


@pytest.mark.parametrize("room", FREE)
def test_no_file_names_a_strategy(room: str) -> None:
    found = []
    for path in sorted((ROOT / room).rglob("*")):
        if path.suffix not in (".py", ".json", ".css", ".html", ".jinja", ".j2"):
            continue
        where = path.relative_to(ROOT).as_posix()
        found += [f"{where}: {line}" for line in named(path.read_text("utf-8"), strategy_names())]
    assert found == []


def test_a_name_would_be_found() -> None:
    assert {"early_exit", "early_exit+ngram", "ngram", "skip_set", "swift"} <= strategy_names()
    names = strategy_names()
    for line in ("# like SWIFT", 'if draft == "early_exit":', "x = row['skip_set:t1']", "import ngram.ngram"):
        assert named(line, names) == [line]
    for line in ('if draft == "heads":', "row['heads:t1']", 'draft="heads+ngram"'):
        assert named(line, names) == [line]
    assert named("heads = config.num_heads  # of heads", names) == []
    for line in ("swiftly = 1", "ngrams = 2", "early exits", "my_early_exit_layer"):
        assert named(line, names) == []
