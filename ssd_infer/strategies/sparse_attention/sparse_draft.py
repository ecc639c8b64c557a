"""How `sparse_attention` drafts: a selector chooses slots, a working set holds them, all layers run on them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ssd_infer.engine.kernels.grouped import FullAttention
from ssd_infer.engine.kernels.layers import attention_view, unsupported_reason
from ssd_infer.engine.kernels.reads import Reads
from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.sparse_attention.mixed import MixedSet
from ssd_infer.strategies.sparse_attention.quest import Quest
from ssd_infer.strategies.sparse_attention.selectors import (
    Budget,
    Pillar,
    Selector,
    Shape,
    SnapKV,
    Streaming,
    Vegas,
)
from ssd_infer.strategies.sparse_attention.sparse_calibration import (
    MAX_GAMMA,
    draft_length_controller,
    remember,
)
from ssd_infer.strategies.sparse_attention.sparse_memory import row_bytes
from ssd_infer.strategies.sparse_attention.sparse_params import SparseAttentionParams
from ssd_infer.strategies.sparse_attention.working_set import WorkingSet
from ssd_infer.strategies.stepwise import Stepwise


def selectors() -> dict[str, type[Selector]]:
    """Return the selectors by name."""
    kinds: tuple[type[Selector], ...] = (Pillar, Vegas, Streaming, SnapKV, Quest)
    return {kind.name: kind for kind in kinds}


class SparseDraft(Stepwise):
    """Draft with all layers on selected slots, at most γ tokens a round."""

    Params = SparseAttentionParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Set up the selector and what it reads; no `auto` may be left."""
        super().__init__(session, params)
        self.params = cast(SparseAttentionParams, params)
        self.gamma = int(self.params.gamma)
        target, cache = session.target, session.cache
        prompts = tuple(row.prompt_length for row in session.rows)
        self.pace = draft_length_controller(target, self.params, prompts)
        shape = Shape.of(target, cache, prompts)
        kind = selectors()[self.params.selector]
        self.selector = kind(shape, Budget(float(self.params.ratio), int(self.params.min_budget)))
        if self.params.cold_start == "prompt":
            self.selector.hear_prompts()
        self.full = FullAttention(cache, self.selector, prompts, self.selector.prompt_queries)
        self.working = WorkingSet(cache, self.most_slots() + self.max_draft(self.params))
        self.beside: WorkingSet | MixedSet = self.working
        """What is held beside the cache."""
        self.paged = self.selector if isinstance(self.selector, Quest) else None
        self._dense = attention_view(target, FullAttention(cache))
        self._sparse = attention_view(target, self.paged or self.working)
        self._selected = False
        self.reads = Reads()
        self._slot_bytes = 0

    def most_slots(self) -> int:
        """Return the slots a draft step reads of a row at the end of this decoding, when it reads most."""
        capacity = self.session.cache.capacity
        return min(capacity, self.selector.width([capacity] * len(self.session.rows)))

    def prefilled(self) -> None:
        """Let the selector hear the last queries of the prompts, as it would have in the prefill.

        Their slots are written again by that pass, so what was in them is put back.
        """
        session, cache = self.session, self.session.cache
        width = min(self.selector.prompt_queries, *session.lengths)
        if not width:
            return
        starts = [length - width for length in session.lengths]
        rows = zip(session.rows, starts, session.lengths, strict=True)
        ids = torch.tensor([row.tokens[start:end] for row, start, end in rows], device=session.target.device)
        held = [part for layer in range(session.target.num_layers) for part in cache.held(layer)]
        kept = [
            [part[row, :, start : start + width].clone() for row, start in enumerate(starts)] for part in held
        ]
        window = session.window_at(starts, width)
        session.run(session.target.embed_at(ids, window, cache), window)
        for part, slots in zip(held, kept, strict=True):
            for row, start in enumerate(starts):
                part[row, :, start : start + width] = slots[row]

    def begin(self) -> None:
        """Listen to verify passes only where the selector wants them."""
        if not self.selector.listens:
            self.full.listener = None
        cache = self.session.cache
        self._slot_bytes = cache.nbytes() // (cache.batch * cache.capacity)

    def propose(self, limit: int) -> Proposal:
        """Gather what the selector chooses and draft on it; drafts are dense while there is nothing to choose by."""
        gamma, lengths = self.pace.gamma(limit), self.session.lengths
        if gamma == 0:
            self.full.listener = self.selector if self.pace.resumes and self.selector.listens else None
            self.selector.committed([0] * len(lengths))
            return self.session.empty()
        self.full.listener = self.selector if self.selector.listens else None
        self._selected = self.selector.ready
        if self.paged is not None:
            self.paged.prepare(self.session.cache, lengths)
        elif self._selected:
            choice = self.selector.choose(lengths)
            self.working.gather(choice.slots, choice.hidden, gamma)
        self.reads.drafted(lengths, gamma, self.selector.read(lengths) if self._selected else None)
        return self.extend(gamma, self.session.pending)

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run all layers on one `token` `(B,)` a row over the selected slots; return `(B, 1, d)`."""
        session, target = self.session, self.session.target
        window = session.window(1, offset)
        hidden = target.embed_at(token.unsqueeze(1), window, session.cache)
        if not self._selected:
            return target.run(hidden, window, session.cache, layers=self._dense)
        if self.paged is not None:
            return target.run(hidden, window, session.cache, layers=self._sparse)
        self.working.at(offset)
        return target.run(hidden, window, self.working, layers=self._sparse)

    def observe(self, feedback: Feedback) -> None:
        """Let the selector know which slots are new, and the pace how many drafts were right."""
        self.selector.committed(feedback.accepted)
        if self._selected:
            self.pace.learn(feedback.accepted, feedback.counts)
        self.reads.verified(self.session.lengths, feedback.counts, feedback.accepted)

    def keep_rows(self, kept: list[int]) -> None:
        """Drop the scores of ended rows."""
        self.selector.keep_rows(kept)

    def finish(self) -> None:
        """Remember how often drafts were right, for the next decoding's γ."""
        remember(self.session.target, self.params, self.pace.shares)

    def report(self) -> dict[str, Any]:
        """Return how often drafts were right by position, and the cache slots and bytes read for one token."""
        held = self.beside.nbytes() + self.selector.nbytes()
        facts = {"shares": [round(share, 3) for share in self.pace.shares], "held_bytes": held}
        return facts | self.reads.report(self._slot_bytes)

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need plain softmax attention over the whole context, reachable through transformers' interface."""
        return unsupported_reason(target)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ, or the longest draft an adapting γ may reach."""
        resolved = cast(SparseAttentionParams, params)
        return MAX_GAMMA if resolved.adapt else int(resolved.gamma)

    @classmethod
    def extra_bytes(cls, target: Target, params: DraftParams) -> int:
        """Return the working set and the scores of one row at the smallest budget; both grow with the context."""
        slots = int(cast(SparseAttentionParams, params).min_budget) + cls.max_draft(params)
        return super().extra_bytes(target, params) + row_bytes(target, slots, slots)
