"""Draft head `context`: K tokens that are always looked at, and those of the last w tokens of a row's text.

What a text has used it uses again: names, numbers, the words of another domain (MicroSpec, arXiv 2605.26444). Rows of
a batch differ, so each has a table of its own, into which one row of the head is copied for each token new in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.heads.rows import rows_of
from ssd_infer.engine.heads.static import StaticHead
from ssd_infer.engine.kernels.products import product
from ssd_infer.engine.laws import Scored

if TYPE_CHECKING:
    from ssd_infer.engine.session import Row

WINDOW = 2048
"""w of a head that is not told another."""
_FIRST_PLACES = 256


@dataclass(slots=True)
class _Recent:
    """The distinct tokens of one row's window that are not looked at anyway, each at a place of its table."""

    read: int = 0
    """Tokens of the row that were taken in."""
    counts: Counter[int] = field(default_factory=Counter)
    """How often each token is in the window."""
    places: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """The token at each place."""

    def follow(self, tokens: Sequence[int], width: int, known: frozenset[int]) -> set[int]:
        """Move the window to the end of `tokens`; return the places whose token is another one now."""
        changed: set[int] = set()
        for at in range(max(self.read, len(tokens) - width), len(tokens)):
            token = tokens[at]
            if token in known:
                continue
            self.counts[token] += 1
            if token not in self.places:
                self.places[token] = len(self.order)
                changed.add(len(self.order))
                self.order.append(token)
        for at in range(max(0, self.read - width), min(self.read, len(tokens) - width)):
            self._leave(tokens[at], changed)
        self.read = len(tokens)
        return {place for place in changed if place < len(self.order)}

    def _leave(self, token: int, changed: set[int]) -> None:
        """Count `token` once less; at the last time its place is taken by the token at the last place."""
        if token not in self.places:
            return
        self.counts[token] -= 1
        if self.counts[token]:
            return
        place, last = self.places.pop(token), self.order.pop()
        del self.counts[token]
        if last != token:
            self.order[place], self.places[last] = last, place
            changed.add(place)


class ContextHead(DraftHead):
    """Score what a static head scores, and each row's tokens of its last `width`, prompt included."""

    kind = "context"

    def __init__(self, static: StaticHead, width: int = WINDOW) -> None:
        """Begin with no rows."""
        self.static, self.width = static, width
        self._known = frozenset(static.ids.tolist())
        self._rows: list[int] = []
        self._recent: list[_Recent] = []
        self._weight, self._bias = (
            static.rows.weight[:0].unsqueeze(0),
            None if static.rows.bias is None else (static.rows.bias[:0].unsqueeze(0)),
        )
        self._ids = static.ids[:0].unsqueeze(0)
        self._shown: Tensor = self._ids
        self._hidden: Tensor | None = None

    def follow(self, rows: Sequence[Row]) -> None:
        """Take in the tokens that `rows` have committed since; rows that are gone are forgotten."""
        self._keep([row.index for row in rows])
        places: list[tuple[int, int]] = []
        for at, (row, recent) in enumerate(zip(rows, self._recent, strict=True)):
            places += [(at, place) for place in recent.follow(row.tokens, self.width, self._known)]
        if places:
            self._copy(places)
        self._show()

    def _keep(self, rows: list[int]) -> None:
        """Bring the tables into the order of `rows`, numbers of the input; those not seen before have empty ones."""
        if rows == self._rows:
            return
        old = {row: at for at, row in enumerate(self._rows)}
        self._recent = [self._recent[old[row]] if row in old else _Recent() for row in rows]
        if self._rows:
            index = torch.tensor([old.get(row, 0) for row in rows], device=self._ids.device)
            self._weight, self._ids = self._weight[index], self._ids[index]
            self._bias = None if self._bias is None else self._bias[index]
        else:
            self._weight, self._ids = (_repeated(part, len(rows)) for part in (self._weight, self._ids))
            self._bias = None if self._bias is None else _repeated(self._bias, len(rows))
        self._rows = rows

    def _copy(self, places: list[tuple[int, int]]) -> None:
        """Copy the head's rows of the tokens at `places` (row, place) into the tables."""
        most = max(len(recent.order) for recent in self._recent)
        if most > self._ids.shape[1]:
            room = max(_FIRST_PLACES, 2 * most)
            self._weight, self._ids = (_wider(part, room) for part in (self._weight, self._ids))
            self._bias = None if self._bias is None else _wider(self._bias, room)
        tokens = torch.tensor(
            [self._recent[row].order[place] for row, place in places], device=self._ids.device
        )
        index = tuple(torch.tensor(places, device=self._ids.device).T)
        found = rows_of(self.static.target, tokens)
        self._weight[index], self._ids[index] = found.weight, tokens
        if self._bias is not None and found.bias is not None:
            self._bias[index] = found.bias

    def _show(self) -> None:
        """Lay out the ids `(B, 1, K + n)` of the coming round, and which of the last n columns are gaps of a row."""
        counts = [len(recent.order) for recent in self._recent]
        most = max(counts, default=0)
        shared = self.static.ids.expand(len(counts), -1)
        device = self._ids.device
        gaps = torch.arange(most, device=device) >= torch.tensor(counts, device=device).unsqueeze(1)
        own = torch.where(gaps, shared[:, :1], self._ids[:, :most])
        self._shown = torch.cat([shared, own], dim=1).unsqueeze(1)
        self._hidden = gaps.unsqueeze(1) if min(counts, default=0) < most else None

    def scores(self, hidden: Tensor) -> Scored:
        """Return the scores `(…, B, T, K + n)`; columns a row has no token for hold -inf."""
        target, static = self.static.target, self.static
        normed = target.normed(hidden)
        most = self._shown.shape[-1] - len(static.ids)
        own = self._own(normed, most)
        logits = target.leave(torch.cat([static.rows.times(normed), own], dim=-1))
        if self._hidden is not None:
            logits[..., -most:].masked_fill_(self._hidden, -torch.inf)
        return Scored(logits, self._shown)

    def _own(self, normed: Tensor, most: int) -> Tensor:
        """Return what each row's own `most` places make of normed states `(…, B, T, d)`."""
        weight, bias = self._weight[:, :most], None if self._bias is None else self._bias[:, None, :most]
        if len(weight) == 1:
            return product(normed, weight[0], None if bias is None else bias[0, 0])
        out = normed @ weight.transpose(-1, -2)
        return out if bias is None else out + bias


def _repeated(part: Tensor, rows: int) -> Tensor:
    return part.expand(rows, *part.shape[1:]).contiguous()


def _wider(part: Tensor, room: int) -> Tensor:
    """Return `(B, n, …)` with `room` places a row."""
    wide = part.new_zeros((part.shape[0], room, *part.shape[2:]))
    wide[:, : part.shape[1]] = part
    return wide
