"""Text that every machine already has: the running Python's documentation topics and library sources.

Nothing is downloaded and no one's text is shipped. Each passage occurs once, and a document belongs to one split
for ever: the split is a hash of the document's name, so it survives another Python version, and what a module says
in its docstrings is in the same split as its code.
"""

from __future__ import annotations

import hashlib
import importlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ssd_infer.corpus.cleaning import clean_code, clean_prose, paragraphs, split_docstrings
from ssd_infer.errors import DataError

Split = Literal["train", "validation", "test"]
Kind = Literal["prose", "code"]

HELD_OUT_PERCENT = 6
"""Share of the document names, in percent, that each of validation and test receives."""

_SKIPPED_DIRECTORIES = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
    | {"lib-dynload", "lib2to3", "turtledemo", "_pyrepl_test", "config"}
)
_MIN_CHARACTERS = 400
_MIN_PARAGRAPH = 40
_DUPLICATE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its `name` (a topic, or a path below the standard library)."""

    name: str
    text: str


def split_of(name: str) -> Split:
    """Return the split of the document called `name`: a hash, so it depends on nothing but the name."""
    bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    if bucket < HELD_OUT_PERCENT:
        return "test"
    return "validation" if bucket < 2 * HELD_OUT_PERCENT else "train"


def documents(split: Split, kind: Kind) -> list[Document]:
    """Return the documents of one split and kind in a fixed order; raise `DataError` when Python has no sources."""
    if split not in ("train", "validation", "test"):
        raise DataError(f"split: must be train, validation or test (got {split!r})")
    if kind not in ("prose", "code"):
        raise DataError(f"kind: must be prose or code (got {kind!r})")
    return [document for document in _corpus()[kind] if split_of(_group(document.name)) == split]


def fingerprint() -> str:
    """Return a hash of the whole corpus, which changes with the Python version and with the cleaning rules."""
    digest = hashlib.sha256()
    for kind in ("prose", "code"):
        for document in _corpus()[kind]:
            digest.update(f"{document.name}\0{document.text}\0".encode())
    return digest.hexdigest()[:16]


def _group(name: str) -> str:
    return name.removeprefix("docstrings/")


@lru_cache(maxsize=1)
def _corpus() -> dict[str, list[Document]]:
    """Read and clean everything once a process."""
    code: list[Document] = []
    described: list[Document] = []
    for name, source in _sources():
        body, docstrings = split_docstrings(source)
        code.append(Document(name, clean_code(body)))
        described.append(Document(f"docstrings/{name}", clean_prose("\n\n".join(docstrings))))
    prose = [Document(f"topics/{name}", clean_prose(text)) for name, text in _topics().items()]
    # Short topics first: the long ones quote them, and the quoting copy is the one to lose the passage.
    ordered = sorted(prose, key=lambda item: (len(item.text), item.name)) + described
    corpus = {"prose": list(_without_repeats(ordered)), "code": list(_without_near_copies(code))}
    if not corpus["prose"] and not corpus["code"]:
        raise DataError(
            f"data: the running Python has no documentation topics and no sources in {_library()}; "
            "use data=local data.path=FILE or another Python"
        )
    return corpus


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _topics() -> dict[str, str]:
    """Return pydoc's documentation topics; a stripped Python may lack them."""
    try:
        module = importlib.import_module("pydoc_data.topics")
    except ImportError:
        return {}
    return {str(name): str(text) for name, text in sorted(module.topics.items())}


def _sources() -> Iterator[tuple[str, str]]:
    """Yield `(relative path, text)` of the library's own modules in sorted order, tests and tables left out."""
    library = _library()
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if any(part in _SKIPPED_DIRECTORIES or part.startswith("config-") for part in parts[:-1]):
            continue
        if parts[-1].startswith("_sysconfigdata"):
            continue
        try:
            yield "/".join(parts), path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):  # a latin-1 or unreadable module is no reason to stop
            continue


def _without_repeats(items: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents without paragraphs that an earlier one has, and without what is then too short."""
    seen: set[str] = set()
    for item in items:
        kept: list[str] = []
        for paragraph in paragraphs(item.text):
            key = " ".join(paragraph.split())
            if len(key) >= _MIN_PARAGRAPH and key in seen:
                continue
            seen.add(key)
            kept.append(paragraph)
        text = "\n\n".join(kept) + "\n"
        if len(text) >= _MIN_CHARACTERS:
            yield Document(item.name, text)


def _without_near_copies(items: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents of which at most half the lines (of some length) stand in documents before them."""
    seen: set[int] = set()
    for item in items:
        lines = {hash(line) for line in map(str.strip, item.text.split("\n")) if len(line) > 20}
        if len(item.text) < _MIN_CHARACTERS or len(lines & seen) > _DUPLICATE_SHARE * max(1, len(lines)):
            continue
        seen |= lines
        yield item
