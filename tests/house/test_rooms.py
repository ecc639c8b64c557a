"""One thing has one name: no word that the house gave up comes back, and files can be told apart by theirs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GIVEN_UP = re.compile(
    r"_*(un)?(settl(e\w*|ing)|surroundings|circumstances|(fore(see|saw)\w*)|outlooks?|line_up|recall(ed)?|why_not)",
    re.IGNORECASE,
)
"""Names as `settle`, `Outlook`, `_why_not`; the field says resolve, prediction, unsupported_reason."""


def names(tree: ast.AST) -> Iterator[str]:
    """Yield every identifier of a module: what it defines, binds, takes, imports or reaches into."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield from name.split(".")
            case ast.alias(name=name, asname=other):
                yield from (*name.split("."), *([other] if other else []))
            case _:
                pass


def given_up(name: str) -> bool:
    """Tell whether `name`, or a part of it between underscores, is a word that was given up."""
    return any(GIVEN_UP.fullmatch(part) for part in (name, *name.split("_")))


@pytest.mark.parametrize("top", ["ssd_infer", "ssd_train"])
def test_words_given_up_do_not_come_back(top: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / top).rglob("*.py"))
        for name in (*names(ast.parse(path.read_text("utf-8"))), path.stem)
        if given_up(name)
    ]
    assert found == []


def test_the_words_are_seen_wherever_they_stand() -> None:
    source = """
from a.settle import b as line_up
class Outlook:
    def _settle(self, why_not): return self.settled(foreseen=1)
def recall_costs(): surroundings = circumstances.outlook
"""
    found = [name for name in names(ast.parse(source)) if given_up(name)]
    seen = {"settle", "line_up", "Outlook", "_settle", "why_not", "settled", "foreseen", "recall_costs"}
    assert set(found) == seen | {"surroundings", "circumstances", "outlook"}


def test_no_file_name_occurs_more_than_twice() -> None:
    counted = Counter(path.name for path in (ROOT / "ssd_infer").rglob("*.py") if path.name != "__init__.py")
    assert {name: count for name, count in counted.items() if count > 2} == {}
