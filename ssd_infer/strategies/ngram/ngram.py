"""Draft `ngram`: copy what followed the same tokens earlier in the row (prompt lookup); costs no forward at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from ssd_infer.engine.session import Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import DraftParams, Strategy, at_least
from ssd_infer.strategies.ngram import NGRAM


@dataclass(slots=True)
class NgramParams(DraftParams):
    """How many tokens to copy, and the longest and shortest match to look for."""

    gamma: int = 8
    max_ngram: int = 4
    min_ngram: int = 1

    def problems(self, target: Target | None) -> list[Problem]:
        """Check gamma >= 1 and 1 <= min_ngram <= max_ngram."""
        del target
        found = at_least("gamma", self.gamma, 1) + at_least("min_ngram", self.min_ngram, 1)
        if self.max_ngram < self.min_ngram:
            found.append(
                Problem(
                    "draft_params.max_ngram", "must be >= min_ngram", self.max_ngram, f"try {self.min_ngram}"
                )
            )
        return found


class NgramIndex:
    """Where each n-gram of one row last occurred with something after it; extended as the row grows."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        """Index n-grams of `min_ngram` to `max_ngram` tokens."""
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def lookup(self, tokens: list[int], count: int) -> tuple[list[int], int]:
        """Return up to `count` tokens that followed the longest known suffix of `tokens`, and that suffix's length."""
        self._catch_up(tokens)
        for size in self._sizes:
            at = self._after.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if at is not None:
                return tokens[at : at + count], size
        return [], 0

    def _catch_up(self, tokens: list[int]) -> None:
        """Index every n-gram that has a follower by now."""
        for end in range(max(self._seen, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(tokens[end - size : end])] = end
        self._seen = max(self._seen, len(tokens))


class Ngram(Strategy):
    """Copy up to γ tokens from the most recent earlier occurrence of the longest matching suffix."""

    info = NGRAM
    Params = NgramParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Keep one index a row."""
        super().__init__(session, params)
        self.params = cast(NgramParams, params)
        self.indices = [NgramIndex(self.params.min_ngram, self.params.max_ngram) for _ in session.rows]

    def propose(self, limit: int) -> Proposal:
        """Copy for every row that has a match; rows without one draft nothing."""
        session, gamma = self.session, min(self.params.gamma, limit)
        copied = [
            index.lookup(row.tokens, gamma)[0] for index, row in zip(self.indices, session.rows, strict=True)
        ]
        return pack(session, copied)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget the indices of ended rows."""
        self.indices = [self.indices[position] for position in kept]


def pack(session: Session, drafts: list[list[int]]) -> Proposal:
    """Turn token lists of different lengths into one deterministic proposal."""
    width = max(map(len, drafts))
    if width == 0:
        return session.empty()
    device = session.pending.device
    tokens = torch.tensor([draft + [0] * (width - len(draft)) for draft in drafts], device=device)
    ragged = any(len(draft) < width for draft in drafts)
    counts = torch.tensor([len(draft) for draft in drafts], device=device) if ragged else None
    return Proposal(tokens, counts)
