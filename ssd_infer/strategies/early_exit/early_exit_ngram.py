"""Draft `early_exit+ngram`: speculation inside the draft.

A copied continuation (prompt lookup) is itself verified by the exit in one pass over the first E layers: by the very
acceptance rule the target uses later, so what comes out is distributed exactly as the exit would have drafted it,
many tokens for the price of one early pass. The exit's own next token and more drafted steps follow. Where a long
match has proved reliable on this row, the copy goes to the target as it is, without asking the exit.

With `tree` above 1 the exit is not asked about copies at all: they become branches beside the tree it drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ssd_infer.engine.acceptance import accept_scored
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.session import Proposal
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.early_exit import EARLY_EXIT_NGRAM
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.early_exit.exit_params import EarlyExitParams
from ssd_infer.strategies.ngram.ngram import pack
from ssd_infer.strategies.ngram.with_copies import CopyParams, WithCopies
from ssd_infer.tuning.tree_costs import most_nodes


@dataclass(slots=True)
class EarlyExitNgramParams(CopyParams, EarlyExitParams):
    """Early-exit parameters, and how many tokens to copy from which matches."""


class EarlyExitNgram(WithCopies, EarlyExit):
    """Copy, let the exit check the copy, draft on from there."""

    info = EARLY_EXIT_NGRAM
    Params = EarlyExitNgramParams

    def chain(self, copies: list[list[int]], limit: int) -> Proposal:
        """Draft from a copy where a row has one; without any copy this is plain early-exit drafting."""
        return self._checked_copy(copies, limit) if any(copies) else super().chain(copies, limit)

    def _checked_copy(self, copies: list[list[int]], limit: int) -> Proposal:
        """Verify copies with the exit, then draft on until γ tokens are there."""
        session, target, head = self.session, self.session.target, self.head
        head.follow(session.rows)
        packed = pack(session, copies)
        ids = torch.cat([session.pending.unsqueeze(1), packed.tokens], dim=1)
        window = session.window(ids.shape[1])
        hidden = target.embed_at(ids, window, session.cache)
        hidden = target.run(hidden, window, session.cache, 0, self.exit_layer)
        scored = session.block_scores(head.scores(hidden), packed)
        kept, following = accept_scored(scored, packed.tokens, packed.counts, session.sampler)
        kept_host = [min(count, limit - 1) for count in kept.tolist()]
        steps = max(0, min(self.gamma, limit) - 1 - min(kept_host))
        draft = _Buffer.start(packed.tokens, following, kept, hidden, scored, session.sampler, steps)
        token = draft.tokens[
            torch.arange(len(kept_host), device=ids.device), torch.tensor(kept_host, device=ids.device)
        ]
        for step in range(steps):
            at = [count + 1 + step for count in kept_host]
            hidden = self._early(token, at)
            token, law = self._pick(self._scores(head.scores(hidden).last(), draft.tokens, at))
            draft.write(at, hidden[:, 0], token, law)
        ends = [count + 1 + steps for count in kept_host]
        draft.write(ends, self._early(token, ends)[:, 0])
        counts = [
            min(end, limit) for end in ends
        ]  # only what is proposed is cut, never where a state belongs
        return draft.proposal(counts, self.exit_layer, forwards=1 + steps)

    def _scores(self, scored: Scored, drafts: Tensor, at: list[int]) -> Scored:
        """Return what the exit chooses by after the first `at[b]` of each row's `drafts` `(B, room)`."""
        if self.session.rules is None:
            return scored
        table = [tokens[:count] for tokens, count in zip(drafts.tolist(), at, strict=True)]
        return self.session.step_scores(scored, table)

    def _early(self, token: Tensor, at: list[int]) -> Tensor:
        """Run the first E layers on one `token` `(B,)` a row, `at[b]` past its committed length; return `(B, 1, d)`."""
        session, target = self.session, self.session.target
        window = session.window_at(
            [length + offset for length, offset in zip(session.lengths, at, strict=True)]
        )
        hidden = target.embed_at(token.unsqueeze(1), window, session.cache)
        return target.run(hidden, window, session.cache, 0, self.exit_layer)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return the longest of γ drafts and a copy with its follower and steps."""
        resolved = cast(EarlyExitNgramParams, params)
        return max(int(resolved.gamma) + resolved.copy + 1, most_nodes(resolved.tree))


@dataclass(slots=True)
class _Buffer:
    """Drafted tokens, exit states and laws of rows that stand at different positions."""

    tokens: Tensor
    hidden: Tensor
    law: Law | None

    @classmethod
    def start(
        cls,
        copies: Tensor,
        following: Tensor,
        kept: Tensor,
        hidden: Tensor,
        scored: Scored,
        sampler: Sampler,
        steps: int,
    ) -> _Buffer:
        """Hold the checked copies `(B, k)` and each row's follower, with room for `steps` more."""
        batch, width = hidden.shape[:2]
        room = width + steps + 1
        tokens = copies.new_zeros((batch, room))
        tokens[:, : width - 1] = copies
        tokens.scatter_(1, kept.unsqueeze(1), following.unsqueeze(1))
        states = hidden.new_zeros((batch, room, hidden.shape[-1]))
        states[:, :width] = hidden
        if sampler.greedy:
            return cls(tokens, states, None)
        return cls(tokens, states, Law(sampler.probs(scored.logits), scored.ids).widened(room))

    def write(
        self, at: list[int], hidden: Tensor, token: Tensor | None = None, law: Law | None = None
    ) -> None:
        """Store the exit state `(B, d)` of each row's position `at[b]`, and the token drafted from it."""
        rows = torch.arange(len(at), device=hidden.device)
        position = torch.tensor(at, device=hidden.device)
        self.hidden[rows, position] = hidden
        if token is not None:
            self.tokens[rows, position] = token
        if law is not None and self.law is not None:
            self.law.put((rows, position), law)

    def proposal(self, counts: list[int], exit_layer: int, forwards: int) -> Proposal:
        """Cut to the longest row."""
        width = max(counts)
        ragged = min(counts) < width
        real = torch.tensor(counts, device=self.tokens.device) if ragged else None
        law = None if self.law is None else self.law.first(width)
        return Proposal(self.tokens[:, :width], real, law, self.hidden[:, : width + 1], exit_layer, forwards)
