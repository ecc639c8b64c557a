"""What drafts have in common that copy earlier text beside what they draft themselves.

Where a draft grows trees, copies are branches beside its own. Where it drafts chains, what becomes of a copy is the
draft's own affair. Where long matches have proved reliable on every row, copies alone go to verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import DraftParams, at_least
from ssd_infer.strategies.ngram.copies_beside import CopiesBeside, Copying
from ssd_infer.strategies.ngram.ngram import NgramIndex, length_problems, pack
from ssd_infer.strategies.ngram.reliability import Reliability
from ssd_infer.strategies.stepwise import Stepwise


@dataclass
class CopyParams(DraftParams):
    """How many tokens to copy from which matches, beside the parameters of a draft that stands after it."""

    copy: int = 10
    max_ngram: int = 4
    min_ngram: int = 1
    trust: int = 3
    """Matches of at least this many tokens may go to verification alone once they have proved reliable; 0: never."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check the draft's own rules, copy >= 1 and 1 <= min_ngram <= max_ngram."""
        found = super().problems(target) + at_least("copy", self.copy, 1)
        return found + length_problems(self.min_ngram, self.max_ngram)


class WithCopies(Stepwise):
    """Stands before a draft that drafts token by token, and lets it copy."""

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Know no row's text yet, and nothing of what either way wins."""
        super().__init__(session, params)
        copying = cast(CopyParams, params)
        self._copy, self._trust = copying.copy, copying.trust
        self._indices = [NgramIndex(copying.min_ngram, copying.max_ngram) for _ in session.rows]
        self._by_copies = Reliability(prior=float(copying.copy))
        self._by_draft = Reliability(prior=float(self.gamma) / 2)
        self._alone = False
        """Whether copies alone went to verification in this round."""
        self._beside = None if self.shape is None else CopiesBeside(self, cast(Copying, params))

    def propose(self, limit: int) -> Proposal:
        """Draft with copies beside, or with copies alone where they are reliable."""
        if self._beside is not None:
            return self._tree(self._beside, limit)
        most = min(self._copy, limit)
        pairs = zip(self._indices, self.session.rows, strict=True)
        found = [index.lookup(row.tokens, most) for index, row in pairs]
        copies = [tokens for tokens, _ in found]
        self._alone = self._trusts([size for _, size in found])
        return pack(self.session, copies) if self._alone else self.chain(copies, limit)

    def chain(self, copies: list[list[int]], limit: int) -> Proposal:
        """Draft a chain where each row has a copy, or an empty one, that is not trusted alone."""
        del copies
        return super().propose(limit)

    def observe(self, feedback: Feedback) -> None:
        """Learn what this way of drafting won, and which copies were right."""
        super().observe(feedback)
        won = sum(feedback.accepted) / len(feedback.accepted)
        (self._by_copies if self._alone else self._by_draft).learn(won)
        if self._beside is not None:
            self._beside.learn(feedback.path or [])

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        super().keep_rows(kept)
        self._indices = [self._indices[position] for position in kept]
        if self._beside is not None:
            self._beside.keep_rows(kept)

    def _tree(self, beside: CopiesBeside, limit: int) -> Proposal:
        """Draft a tree with copies as branches, or of copies alone; without any copy the tree is the draft's own."""
        self._alone = self._trusts(beside.look(limit))
        if self._alone:
            return beside.copies_alone(limit)
        return beside.propose(limit) if beside.found else super().propose(limit)

    def _trusts(self, sizes: list[int]) -> bool:
        """Tell whether copies alone are expected to win more tokens; `sizes` are the lengths of the rows' matches."""
        reliable = self._by_copies.mean > self._by_draft.mean
        return self._trust > 0 and min(sizes) >= self._trust and reliable
