"""One decoded text a strategy, with who wrote each token: the draft, or the target that corrected or followed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.engine.stats import RowStats
from ssd_infer.evaluation.measure import Measurements, Record, Unit

PROMPT_TOKENS, SHOWN_TOKENS = 32, 96
"""How much of the prompt and of the output is kept."""
UNFINISHED = "\ufffd"
"""What a tokenizer says for the first bytes of a character."""


def written(
    found: Measurements, names: Sequence[str], units: Sequence[Unit], tokenizer: Any
) -> dict[str, dict[str, Any]]:
    """Return, for each of `names` that drafted, a text with its pieces and blocks; nothing without a tokenizer."""
    if tokenizer is None:
        return {}
    prompts = {unit.index: unit.prompts for unit in units}
    texts = {}
    for name in names:
        record = telling(found.records.get(name, []))
        if record is not None:
            texts[name] = told(record, prompts[record.unit][0], tokenizer)
    return texts


def telling(records: Sequence[Record]) -> Record | None:
    """Return the record with the median share of drafted tokens in its first row; None where no tokens were drafted."""
    rows = [(row.accepted / row.emitted, at) for at, record in enumerate(records) if (row := _row(record))]
    return records[sorted(rows)[len(rows) // 2][1]] if rows else None


def _row(record: Record) -> RowStats | None:
    """Return the counters of a record's first row where they tell which tokens were drafted."""
    stats = record.decoded.stats
    row = stats.rows[0] if stats is not None else None
    # A decoder of states counts moves between them: its trace says nothing of tokens.
    return row if row is not None and row.drafted and row.trace[0][0] > 0 else None


def told(record: Record, prompt: Sequence[int], tokenizer: Any) -> dict[str, Any]:
    """Return the end of the prompt, the pieces of the output, and per block how many of its tokens were drafted."""
    row = _row(record)
    assert row is not None
    tokens = record.decoded.tokens[0]
    tail = list(prompt[-PROMPT_TOKENS:])
    return {
        "task": record.task,
        "prompt": tokenizer.decode(tail),
        "pieces": pieces(tokenizer, tail, tokens[:SHOWN_TOKENS]),
        "blocks": blocks(row),
        "tokens": len(tokens),
    }


def blocks(row: RowStats) -> list[list[int]]:
    """Return (tokens, drafted and accepted among them) of each block shown, that of prefill first."""
    starts = [emitted for emitted, _, _ in row.trace]
    ends = [*starts[1:], row.emitted]
    rounds = [
        [end - start, accepted] for start, end, (_, _, accepted) in zip(starts, ends, row.trace, strict=True)
    ]
    shown = [block for start, block in zip(starts, rounds, strict=True) if start < SHOWN_TOKENS]
    return [[starts[0], 0], *shown]


def pieces(tokenizer: Any, before: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return the text that each token adds after `before`; a token that ends no character adds none."""
    ids, found = list(before), []
    done = tokenizer.decode(ids)
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        whole = text.startswith(done) and not text.endswith(UNFINISHED)
        found.append(text[len(done) :] if whole else "")
        done = text if whole else done
    return found
