"""Decoded texts of a report, each token with who wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ssd_infer.report.format import readable, task_text
from ssd_infer.report.rows import Report, Row, ok_rows
from ssd_infer.report.tables import look_of


@dataclass(frozen=True, slots=True)
class Piece:
    """One token: its text, whether the draft or the target wrote it, and in which round."""

    text: str
    kind: str
    hint: str


@dataclass(frozen=True, slots=True)
class Stream:
    """One decoded text: its strategy, the end of its prompt, its tokens."""

    name: str
    look: str
    task: str
    prompt: str
    pieces: tuple[Piece, ...]
    tokens: int

    @property
    def share(self) -> str:
        """Say how many of the shown tokens were drafted."""
        drafted = sum(piece.kind == "draft" for piece in self.pieces)
        return f"{drafted} of {len(self.pieces)} tokens drafted"

    @property
    def cut(self) -> bool:
        """Tell whether the text went on."""
        return self.tokens > len(self.pieces)


def streams(report: Report) -> list[Stream]:
    """Return the texts of all measured strategies that kept one, the best strategy's first."""
    best = report["verdict"]["best_strategy"]
    rows = [row for row in ok_rows(report) if row["extra"].get("stream")]
    return [_stream(row) for row in sorted(rows, key=lambda row: row["name"] != best)]


def _stream(row: Row) -> Stream:
    facts = row["extra"]["stream"]
    pieces = tuple(
        Piece(text or "·", *who) for text, who in zip(facts["pieces"], writers(facts["blocks"]), strict=False)
    )
    name, task = readable(row["name"]), task_text(facts["task"])
    return Stream(name, look_of(row), task, facts["prompt"], pieces, facts["tokens"])


def writers(blocks: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and hint of every token, given tokens and accepted drafts of each block; the first is prefill's."""
    for number, (count, drafted) in enumerate(blocks):
        for place in range(1, count + 1):
            if not number:
                yield "target", "prefill: the first token"
            elif place <= drafted:
                yield "draft", f"round {number}: draft {place} of {drafted} accepted"
            else:
                yield "target", f"round {number}: written by the target after {drafted} accepted drafts"
