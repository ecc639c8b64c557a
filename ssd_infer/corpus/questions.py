"""Benchmarks of speculative decoding from files: Spec-Bench's questions and SPEED-Bench's, by their own categories.

Both are rows with `category` and `turns`, the user's messages of one conversation: JSON lines, SPEED-Bench Parquet as
well. They are not shipped: their licences are their authors'. The first turn is asked; later ones follow answers that
nobody has given yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_infer.corpus.chat import encode_messages, written_by
from ssd_infer.corpus.task import Task
from ssd_infer.corpus.textfiles import check_text, read_objects
from ssd_infer.errors import DataError, one_line

FIELDS = ("category", "turns")
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""How a turn of SPEED-Bench begins whose text its licence keeps out of the file as published."""
LONGEST_CATEGORY = 64
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class Question:
    """One row of a file: what is asked, under which category, and how many turns the conversation has."""

    where: str
    category: str
    text: str
    turns: int


def read_questions(name: str) -> list[Question]:
    """Return the questions of `spec_bench:PATH` or `speed_bench:PATH`; raises DataError by file, line, rule, remedy."""
    path = Path(name.partition(":")[2]).expanduser()
    questions = [_question(where, row) for where, row in _rows(path)]
    if not questions:
        raise DataError(f'tasks: {name} holds no question; give one {{"category": …, "turns": […]}} a line')
    return questions


def question_tasks(name: str, tokenizer: Any, samples: int) -> list[Task]:
    """Return a task a category of the file, in its order, with at most `samples` prompts each, all kept whole.

    The last question of a category is held back to choose parameters on, where the category has another one.
    """
    kind = name.partition(":")[0]
    questions = read_questions(name)
    how, notes = written_by(tokenizer), _notes(kind, questions, tokenizer)
    tasks = []
    for category in dict.fromkeys(question.category for question in questions):
        asked = [question for question in questions if question.category == category]
        measured, held_back = (
            [encode_messages(tokenizer, [question.text], question.where) for question in part]
            for part in hold_back(asked, samples)
        )
        tasks.append(Task(f"{kind}/{category}", measured, held_back, how, notes))
    return tasks


def hold_back(asked: Sequence[Question], samples: int) -> tuple[list[Question], list[Question]]:
    """Return at most `samples` questions to measure, and the last one unless one of them asks the same."""
    last = asked[-1]
    measured = [question for question in asked[:-1] if question.text != last.text][:samples]
    return (measured, [last]) if measured else (list(asked[:samples]), [])


def _notes(kind: str, questions: list[Question], tokenizer: Any) -> tuple[str, ...]:
    notes = []
    more = sum(question.turns > 1 for question in questions)
    if more:
        notes.append(
            f"{kind}: {more} of {len(questions)} questions go on after an answer; their first turn is asked alone"
        )
    if written_by(tokenizer) == "plain text":
        notes.append(f"{kind}: this tokenizer has no chat template, so its prompts are plain text")
    return tuple(notes)


def _question(where: str, row: dict[str, Any]) -> Question:
    """Check one row; `where` names it."""
    for field in FIELDS:
        if row.get(field) is None:
            found = ", ".join(sorted(map(str, row))) or "none"
            raise _refused(where, field, f"is missing (found {found})", "add it or remove the row")
    category, turns = row["category"], row["turns"]
    if not isinstance(category, str) or not 0 < len(category.strip()) <= LONGEST_CATEGORY:
        rule = f"must be a name of 1 to {LONGEST_CATEGORY} characters (got {_short(category)})"
        raise _refused(where, "category", rule, 'write one such as "coding"')
    if not category.isprintable():
        rule = f"must be one line of printable characters (got {_short(category)})"
        raise _refused(where, "category", rule, 'write one such as "coding"')
    if not isinstance(turns, list) or not turns:
        rule = f"must be a list of one message or more (got {_short(turns)})"
        raise _refused(where, "turns", rule, 'write ["…"]')
    for number, turn in enumerate(turns):
        _check_turn(where, f"turns.{number}", turn)
    return Question(where, category.strip(), turns[0], len(turns))


def _check_turn(where: str, field: str, turn: object) -> None:
    if not isinstance(turn, str) or not turn.strip():
        raise _refused(where, field, f"must be text (got {_short(turn)})", "write the user's message")
    if turn.startswith(PLACEHOLDER):
        remedy = "run NVIDIA's prepare_data.py of specdec_bench and give the file it writes"
        raise _refused(where, field, "is a placeholder, not a prompt", remedy)
    check_text(turn, f"tasks: {where}: {field}")


def _refused(where: str, field: str, rule: str, remedy: str) -> DataError:
    return DataError(f"tasks: {where}: {field} {rule}; {remedy}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `(where, row)` of JSON lines or Parquet."""
    if path.suffix.lower() in _PARQUET:
        yield from _parquet_rows(path)
    else:
        yield from ((where, row) for where, _, row in read_objects(path, "tasks"))


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a Parquet file, numbered from 1, of the columns that are read."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in FIELDS if name in file.schema_arrow.names]
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"tasks: {path} is not a readable Parquet file ({one_line(error)}); download or write it again"
        ) from error
