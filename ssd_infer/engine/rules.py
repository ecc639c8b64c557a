"""Rules of generation at work: what logits processors make of the scores at every position of a block.

A processor's answer hangs on the text before a position. Plain decoding asks for one position at a time; here the
positions of a drafted block are asked for one after the other, each after the committed text and the drafts before it,
and every row by itself. Positions that plain decoding cannot reach, after an end or a token that is ruled out, keep
their logits: no processor hears a text that it would not hear there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ssd_infer.engine.session import Row

Processor = Callable[[Tensor, Tensor], Tensor]
"""`(ids (N, T), scores (N, V)) → scores (N, V)`, as transformers has it."""


@dataclass(slots=True)
class RowRules:
    """The processors of one row, and its text as they see it."""

    processors: Sequence[Processor]
    prompt: list[int]
    """The prompt as processors see it; with what pads it where a caller's own processors were made for that."""
    device: torch.device
    _ids: Tensor = field(init=False)
    _known: int = 0

    def __post_init__(self) -> None:
        """Start the text with the prompt."""
        self._ids = torch.empty(2 * len(self.prompt) + 64, dtype=torch.long, device=self.device)
        self._write(self.prompt, 0)
        self._known = len(self.prompt)

    def text(self, row: Row, drafts: Sequence[int] = ()) -> Tensor:
        """Return the ids `(T,)` of the row's tokens so far and `drafts` after them; valid until the next call."""
        old = self._known - len(self.prompt) + row.prompt_length
        self._write([*row.tokens[old:], *drafts], self._known)
        self._known += len(row.tokens) - old
        return self._ids[: self._known + len(drafts)]

    def scores(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return what the processors make of `scores` `(N, V)`, all after the text `ids` `(T,)`."""
        texts = ids.expand(len(scores), -1)
        for processor in self.processors:
            scores = processor(texts, scores)
        return scores

    def _write(self, tokens: list[int], at: int) -> None:
        end = at + len(tokens)
        if end > len(self._ids):
            self._ids = torch.cat([self._ids, self._ids.new_empty(end)])
        if tokens:
            self._ids[at:end] = torch.tensor(tokens, dtype=torch.long)


@dataclass(slots=True)
class Rules:
    """The rules of one decoding: those of every row of the input."""

    rows: Sequence[RowRules]
    ends: frozenset[int] = frozenset()
    """Tokens that end a row: what is drafted after one is never asked for."""

    def target(self, rows: Sequence[Row], logits: Tensor, drafts: Sequence[Sequence[int]] = ()) -> Tensor:
        """Return the scores `(…, B, T, V)` in float32 for the pending token and each draft of a row.

        Scores past a row's own drafts are its logits, as are those that cannot be reached.
        """
        scores = logits.to(torch.float32, copy=True)
        for at, row in enumerate(rows):
            block = drafts[at] if drafts else ()
            ids = self.rows[row.index].text(row, block)
            self._block(self.rows[row.index], ids, block, scores[..., at, :, :])
        return scores

    def nodes(
        self,
        rows: Sequence[Row],
        logits: Tensor,
        tokens: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
    ) -> Tensor:
        """Return the scores `(B, N+1, V)` in float32 for the pending token and each node of a row's tree.

        The text before a node is the path to it; `parents` of nodes 1 to N are a list a row, or one for all rows.
        """
        scores = logits.to(torch.float32, copy=True)
        for at, row in enumerate(rows):
            listed = parents[at if len(parents) > 1 else 0]
            self._paths(self.rows[row.index], row, tokens[at], listed, scores[at])
        return scores

    def draft(self, rows: Sequence[Row], logits: Tensor, drafts: Sequence[Sequence[int]] = ()) -> Tensor:
        """Return the scores `(B, T, V)` of a draft for the pending token and each token of a block it checks.

        Where rules leave nothing to choose, the draft goes on by its logits: verification will stop it.
        """
        scores = self.target(rows, logits, drafts)
        return torch.where(choiceless(scores), logits.float(), scores)

    def step(self, rows: Sequence[Row], logits: Tensor, drafts: Sequence[Sequence[int]]) -> Tensor:
        """Return the scores `(B, V)` of a draft for the token after all of a row's `drafts`, as `draft` does."""
        scores = logits.to(torch.float32, copy=True)
        for at, (row, block) in enumerate(zip(rows, drafts, strict=True)):
            if self.ends.isdisjoint(block):
                rules = self.rows[row.index]
                scores[at] = rules.scores(rules.text(row, block), scores[at : at + 1])[0]
        return torch.where(choiceless(scores), logits.float(), scores)

    def committed(self, rows: Sequence[Row], logits: Tensor, starts: Sequence[int]) -> Tensor:
        """Return the scores `(…, B, T, V)` after the tokens at slots `starts[b]`, `starts[b] + 1`, … of each row.

        Inside a prompt no rule was asked for: scores there are the logits.
        """
        scores = logits.to(torch.float32, copy=True)
        for at, (row, start) in enumerate(zip(rows, starts, strict=True)):
            rules = self.rows[row.index]
            ids, shift = rules.text(row), len(rules.prompt) - row.prompt_length
            for column in range(max(0, row.prompt_length - 1 - start), scores.shape[-2]):
                _process(rules, ids[: shift + start + column + 1], scores[..., at, column, :])
        return scores

    def _block(self, rules: RowRules, ids: Tensor, block: Sequence[int], scores: Tensor) -> None:
        """Process the scores `(…, T, V)` of one row in place; `ids` ends with the drafts of `block`."""
        before = len(ids) - len(block)
        for column in range(min(len(block) + 1, scores.shape[-2])):
            if column and not self._reached(block[column - 1], scores[..., column - 1, :]):
                return
            _process(rules, ids[: before + column], scores[..., column, :])

    def _paths(
        self, rules: RowRules, row: Row, tokens: Sequence[int], parents: Sequence[int], scores: Tensor
    ) -> None:
        """Process the scores `(N+1, V)` of one row's tree in place, of those nodes that can be reached."""
        _process(rules, rules.text(row), scores[0])
        paths: list[list[int] | None] = [[]]
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
            before = paths[parent] if parent >= 0 else None
            if before is None or not self._reached(token, scores[parent]):
                paths.append(None)
                continue
            paths.append([*before, token])
            _process(rules, rules.text(row, [*before, token]), scores[node])

    def _reached(self, token: int, scores: Tensor) -> bool:
        """Tell whether a row may go on after `token`, chosen by `scores` `(…, V)`; argmax chooses even from -inf."""
        possible = (scores[..., token] > -torch.inf) | choiceless(scores)[..., 0]
        return token not in self.ends and bool(possible.any())


class RuleSource(Protocol):
    """What a request knows of its rules before its model is looked at."""

    def bind(
        self, prompts: list[list[int]], new: int, ends: frozenset[int], vocabulary: int, device: torch.device
    ) -> Rules | None:
        """Return the rules of a decoding of at most `new` tokens a row; None where none changes a score.

        Raises ConfigError for a rule about tokens that are not in the vocabulary.
        """

    def warpers(self, device: torch.device) -> Warpers | None:
        """Return the rules of sampling; None where there are none."""


@dataclass(frozen=True, slots=True)
class Warpers:
    """Rules of sampling beside temperature, top-k and top-p: they look at the scores of a position alone."""

    before: tuple[Processor, ...] = ()
    """Those between temperature and top-k."""
    after: tuple[Processor, ...] = ()
    """Those after top-p."""

    def warp(self, processors: Sequence[Processor], scores: Tensor) -> Tensor:
        """Return what `processors` make of `scores` `(…, V)`, each with a token to choose."""
        flat = scores.reshape(-1, scores.shape[-1])
        ids = torch.empty((len(flat), 0), dtype=torch.long, device=flat.device)
        for processor in processors:
            flat = processor(ids, flat)
        return flat.view_as(scores)


def _process(rules: RowRules, ids: Tensor, scores: Tensor) -> None:
    """Process the scores `(…, V)` after one text in place.

    A processor that has nothing to say may hand back the very scores it was given. torch does not copy memory onto
    itself when the two views differ in how they step over dimensions of size 1.
    """
    found = rules.scores(ids, scores.reshape(-1, scores.shape[-1]))
    if found.data_ptr() != scores.data_ptr():
        scores.copy_(found.view_as(scores))


def choiceless(scores: Tensor) -> Tensor:
    """Return where rules left no token `(…, 1)`."""
    return scores.amax(dim=-1, keepdim=True) == -torch.inf
