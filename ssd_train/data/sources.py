"""Where text comes from: a source is two restartable streams of passages and a fingerprint of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ssd_infer.corpus import stdlib as stdlib_corpus
from ssd_train.config.schema import StdlibTextConfig


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text; `ends` tells whether its document ends with it."""

    text: str
    ends: bool = True


Passages = Callable[[], Iterator[Passage]]


@dataclass(frozen=True, slots=True)
class TextSource:
    """Training and held-out text of one data option; `key` and `name` are what errors call it."""

    key: str
    name: str
    fingerprint: str
    """Changes with every byte of the text and every setting that chooses among it."""
    train: Passages
    validation: Passages
    contents: dict[str, str] = field(default_factory=dict)
    """Hashes of all that was read, by the dotted key that names it."""


def held_out(passages: Passages, share: float) -> tuple[Passages, Passages]:
    """Split `passages` in two by a hash of each text, so that equal texts never stand on both sides."""

    def train() -> Iterator[Passage]:
        return (item for item in passages() if content_share(item.text) >= share)

    def validation() -> Iterator[Passage]:
        return (item for item in passages() if content_share(item.text) < share)

    return train, validation


def content_share(text: str) -> float:
    """Return a number in [0, 1) that is a hash of `text`."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def stdlib_source(cfg: StdlibTextConfig) -> TextSource:
    """Return the embedded corpus: prose and code in the asked-for proportion, at most `max_mb` of training text."""
    share = cfg.code_share if cfg.include_code else 0.0
    corpus = stdlib_corpus.fingerprint()
    return TextSource(
        key="data",
        name="stdlib_text",
        fingerprint=f"stdlib-{corpus}-{share}-{cfg.max_mb}",
        train=lambda: _stdlib_passages("train", share, cfg.max_mb * 1e6),
        validation=lambda: _stdlib_passages("validation", share, cfg.max_mb * 1e6),
        contents={"data.kind": corpus},
    )


def _stdlib_passages(split: stdlib_corpus.Split, code_share: float, limit: float) -> Iterator[Passage]:
    """Yield documents of both kinds mixed in the order of a hash of their names."""
    prose = stdlib_corpus.documents(split, "prose")
    code = stdlib_corpus.documents(split, "code")
    limits = _budgets(_characters(prose), _characters(code), code_share, limit)
    chosen = [*_up_to(prose, limits[0]), *_up_to(code, limits[1])]
    for document in sorted(chosen, key=lambda item: (content_share(item.name), item.name)):
        yield Passage(document.text)


def _budgets(prose: int, code: int, code_share: float, limit: float) -> tuple[float, float]:
    """Return the characters of prose and of code whose ratio is `code_share`, as many as there are up to `limit`."""
    by_prose = prose / (1 - code_share) if code_share < 1 else float("inf")
    by_code = code / code_share if code_share > 0 else float("inf")
    total = min(by_prose, by_code, limit)
    return total * (1 - code_share), total * code_share


def _characters(items: list[stdlib_corpus.Document]) -> int:
    return sum(len(item.text) for item in items)


def _up_to(items: list[stdlib_corpus.Document], limit: float) -> Iterator[stdlib_corpus.Document]:
    """Yield whole documents in hash order until `limit` characters, the last one cut at it."""
    left = int(limit)
    for item in sorted(items, key=lambda item: (content_share("order:" + item.name), item.name)):
        if left <= 0:
            return
        yield stdlib_corpus.Document(item.name, item.text[:left])
        left -= len(item.text)
