"""Plain decoding: the decoder alone, one token a step, for rows that may hold prefixes of different lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Row:
    """One utterance while it is decoded."""

    index: int
    """Its place in the batch that was given."""
    limit: int
    """Most tokens it may have."""
    tokens: list[int] = field(default_factory=list)
    """What is certain so far, EOS excluded."""
    pending: list[int] = field(default_factory=list)
    """Tokens the decoder has not read yet; the last of them is the newest."""
    done: bool = False

    def take(self, token: int, eos: int) -> None:
        """Append one token; EOS or the limit ends the row."""
        if token == eos:
            self.done = True
            return
        self.tokens.append(token)
        self.pending = [token]
        self.done = len(self.tokens) >= self.limit


@dataclass(slots=True)
class Work:
    """Passes of the decoder, and the token positions they computed, padding included."""

    forwards: int = 0
    verifies: int = 0
    """Those of them that scored a whole draft."""
    positions: int = 0

    def add(self, other: Work) -> None:
        """Add the work of another batch."""
        self.forwards += other.forwards
        self.verifies += other.verifies
        self.positions += other.positions


def step(decoder: Any, state: Any, rows: list[list[int]], work: Work) -> Tensor:
    """Feed each row its tokens, right-padded to the longest; return logits `(B, n, V)`."""
    width = max(map(len, rows))
    even = all(len(row) == width for row in rows)
    padded = rows if even else [row + [decoder.eos] * (width - len(row)) for row in rows]
    work.forwards += 1
    work.positions += width * len(rows)
    tokens = torch.tensor(padded, device=_device(decoder))
    logits: Tensor = decoder.step(state, tokens, None if even else [len(row) for row in rows])
    return logits


def finish(decoder: Any, state: Any, rows: list[Row], work: Work) -> None:
    """Decode `rows`, none of them done, greedily until each has ended; row i of `state` belongs to the i-th."""
    device, eos = _device(decoder), decoder.eos
    if rows and any(len(row.pending) > 1 for row in rows):
        rows = _advance(step(decoder, state, [row.pending for row in rows], work), rows, state, eos)
    while rows:
        tokens = torch.tensor([row.pending for row in rows], device=device)
        work.forwards += 1
        work.positions += len(rows)
        rows = _advance(decoder.step(state, tokens), rows, state, eos)


def keep(state: Any, rows: list[Row], wanted: list[bool]) -> list[Row]:
    """Return the wanted rows and make `state` hold exactly those."""
    if all(wanted):
        return rows
    places = [place for place, good in enumerate(wanted) if good]
    if places:
        state.select(places)
    return [rows[place] for place in places]


def _advance(logits: Tensor, rows: list[Row], state: Any, eos: int) -> list[Row]:
    """Let every row take its most probable next token; return the rows that go on."""
    if logits.shape[1] == 1:
        chosen = logits[:, 0].argmax(dim=-1).tolist()
    else:
        table = logits.argmax(dim=-1).tolist()
        chosen = [choices[len(row.pending) - 1] for row, choices in zip(rows, table, strict=True)]
    for row, token in zip(rows, chosen, strict=True):
        row.take(token, eos)
    return keep(state, rows, [not row.done for row in rows])


def _device(decoder: Any) -> torch.device:
    device: torch.device = next(decoder.parameters()).device
    return device
