"""Drafts `exit_module+ngram`, `mtp+ngram`, `heads+ngram`: a module, and copies of earlier text.

Where the module drafts trees, copies are branches beside its own. Where it drafts chains, and where long matches have
proved reliable on every row, copies alone go to verification.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, at_least
from ssd_infer.strategies.draft_module import EXIT_MODULE_NGRAM, HEADS_NGRAM, MTP_NGRAM
from ssd_infer.strategies.draft_module.exit_module import ExitModuleDraft
from ssd_infer.strategies.draft_module.heads import HeadsDraft
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.strategies.draft_module.mtp import MtpDraft
from ssd_infer.strategies.ngram.copies_beside import CopiesBeside
from ssd_infer.strategies.ngram.ngram import NgramIndex, pack
from ssd_infer.strategies.ngram.reliability import Reliability


@dataclass(slots=True)
class ModuleNgramParams(ModuleParams):
    """Parameters of a module's draft, and how many tokens to copy from which matches."""

    tree: int | Auto = field(default="auto", metadata=UNSAID)
    copy: int = 10
    max_ngram: int = 4
    min_ngram: int = 1
    trust: int = 3
    """Matches of at least this many tokens may go without the module once they have proved reliable; 0: never."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check the module's rules, copy >= 1 and 1 <= min_ngram <= max_ngram."""
        found = ModuleParams.problems(self, target)
        found += at_least("copy", self.copy, 1) + at_least("min_ngram", self.min_ngram, 1)
        if self.max_ngram < self.min_ngram:
            rule = "must be >= min_ngram"
            found.append(Problem("draft_params.max_ngram", rule, self.max_ngram, f"try {self.min_ngram}"))
        return found


class WithCopies(ModuleDraft):
    """Draft with a module and with copies."""

    Params = ModuleNgramParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Know no row's text yet, and nothing of what either way wins."""
        super().__init__(session, params)
        self.copying = cast(ModuleNgramParams, params)
        self._indices = [NgramIndex(self.copying.min_ngram, self.copying.max_ngram) for _ in session.rows]
        self._by_copies = Reliability(prior=float(self.copying.copy))
        self._by_module = Reliability(prior=float(self.gamma) / 2)
        self._is_raw = False
        self._beside = None if self.shape is None else CopiesBeside(self, self.copying)

    def propose(self, limit: int) -> Proposal:
        """Draft with the module, with copies beside its tree, or with copies alone where they are reliable."""
        if self._beside is not None:
            self._is_raw = self._trusts(self._beside.look(limit))
            if self._is_raw:
                return self._beside.copies_alone(limit)
            return self._beside.propose(limit) if self._beside.found else super().propose(limit)
        most = min(self.copying.copy, limit)
        pairs = zip(self._indices, self.session.rows, strict=True)
        found = [index.lookup(row.tokens, most) for index, row in pairs]
        self._is_raw = self._trusts([size for _, size in found])
        return pack(self.session, [tokens for tokens, _ in found]) if self._is_raw else super().propose(limit)

    def observe(self, feedback: Feedback) -> None:
        """Learn what this way of drafting won, and which copies were right."""
        super().observe(feedback)
        won = sum(feedback.accepted) / len(feedback.accepted)
        (self._by_copies if self._is_raw else self._by_module).learn(won)
        if self._beside is not None:
            self._beside.learn(feedback.path or [])

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        super().keep_rows(kept)
        self._indices = [self._indices[position] for position in kept]
        if self._beside is not None:
            self._beside.keep_rows(kept)

    def _trusts(self, sizes: list[int]) -> bool:
        """Tell whether copies alone are expected to win more tokens; `sizes` are the lengths of the rows' matches."""
        trust = self.copying.trust
        return trust > 0 and min(sizes) >= trust and self._by_copies.mean > self._by_module.mean

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return the longest of what the module drafts and a copy."""
        return max(super().max_draft(params), cast(ModuleNgramParams, params).copy)


class ExitModuleNgram(WithCopies, ExitModuleDraft):
    """Copies beside a module after an exit."""

    info = EXIT_MODULE_NGRAM


class MtpNgram(WithCopies, MtpDraft):
    """Copies beside a module on the last state."""

    info = MTP_NGRAM


class HeadsNgram(WithCopies, HeadsDraft):
    """Copies beside blocks on the last state."""

    info = HEADS_NGRAM
