"""The decode loop: prefill → repeat { draft → verify in one target pass → accept → emit → feed back }.

Rolling back needs no step of its own: a row's committed length simply does not move past what was accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from ssd_infer.engine.acceptance import accept
from ssd_infer.engine.clock import Clock
from ssd_infer.engine.drafter import Drafter, DraftParams
from ssd_infer.engine.kernels.plain import grouped_layers
from ssd_infer.engine.proposals import check_counts, check_proposal
from ssd_infer.engine.rules import Rules
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.session import Feedback, Proposal, Session, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.engine.verdict import Verdict, judge

Emit = Callable[[int, list[int]], None]


@dataclass(slots=True)
class Decoding:
    """One run of the loop over a session."""

    session: Session
    drafter: Drafter | None
    stop: StopRule
    stats: Stats
    emit: Emit | None = None

    @torch.inference_mode()
    def run(self) -> list[list[int]]:
        """Decode every row to its end; return the new tokens of each row in the order of the input."""
        clock = Clock(self.session.target.device)
        all_rows = list(self.session.rows)
        with clock.phase("prefill"):
            first = self.prefill()
            self._commit(first)
        if self.drafter is not None and self.session.rows:
            with clock.phase("draft"):
                self.drafter.begin()
        while self.session.rows:
            self.round(clock)
        self.stats.finish()
        self.stats.total.seconds.update(clock.seconds())
        if self.drafter is not None:
            self.drafter.finish()
            self.stats.report = self.drafter.report()
            self.stats.total.seconds.update(self.drafter.seconds())
        return [row.tokens[row.prompt_length :] for row in all_rows]

    def prefill(self) -> list[list[int]]:
        """Run the prompts through all layers; return each row's first token as a block of one."""
        return self._feed([row.tokens for row in self.session.rows])

    def _feed(self, blocks: list[list[int]]) -> list[list[int]]:
        """Run a block of known tokens a row through all layers; return the token after each as a block of one.

        Rows are padded on the right: later slots are invisible to earlier tokens, and overwritten later.
        """
        session = self.session
        session.begin_round()
        lengths = [len(block) for block in blocks]
        width = max(lengths)
        padded = [block + [0] * (width - len(block)) for block in blocks]
        ids = torch.tensor(padded, dtype=torch.long, device=session.target.device)
        window = session.window(width)
        hidden = session.run(session.target.embed_at(ids, window, session.cache), window)
        last = torch.tensor(lengths, device=hidden.device) - 1
        ends = hidden[torch.arange(len(lengths), device=hidden.device), last]
        logits = session.target_scores(session.target.logits(ends.unsqueeze(1)))
        self.stats.total.forwards["target"] += 1
        _, session.pending = accept(logits, ids[:, :0], None, None, session.sampler)
        session.lengths = [old + new for old, new in zip(session.lengths, lengths, strict=True)]
        return [[token] for token in session.pending.tolist()]

    def round(self, clock: Clock) -> None:
        """Draft, verify, accept and commit once, for all rows."""
        session = self.session
        limit = max(row.remaining for row in session.rows) - 1
        session.begin_round()
        with clock.phase("draft"):
            drafter, proposal = self.drafter, session.empty()
            if drafter is not None and limit > 0:
                proposal = drafter.propose(limit)
                check_proposal(proposal, drafter, len(session.rows), session.target.vocab_size)
            proposal = self._within_budgets(proposal)
        with clock.phase("verify"):
            logits, states = self._verify(proposal)
            verdict = judge(logits, proposal, session.sampler)
            if proposal.counts is not None and proposal.tree is None:
                check_counts(verdict.drafted, drafter, proposal.width)
            verdict.move_accepted(session.cache, session.lengths)
        if self.drafter is not None and proposal.width:
            with clock.phase("draft"):
                nodes = verdict.accepted_nodes()
                self.drafter.observe(
                    Feedback(proposal, verdict.drafted, verdict.accepted, logits, states, nodes)
                )
        session.lengths = [
            length + count + 1 for length, count in zip(session.lengths, verdict.accepted, strict=True)
        ]
        session.pending = verdict.following
        self.stats.total.forwards["target"] += 1
        self.stats.total.forwards["draft"] += proposal.forwards
        self._commit(verdict.blocks, verdict)

    def _within_budgets(self, proposal: Proposal) -> Proposal:
        """Let no row that samples have more drafts than it has tokens left to emit, as it would alone.

        Another row's longer drafts would else decide by which draw this one's last token is chosen.
        """
        session, tree = self.session, proposal.tree
        most = [row.remaining - 1 for row in session.rows]
        longest = proposal.width if tree is None else tree.tree.depth
        if session.sampler.greedy or min(most) >= longest:
            return proposal
        limits = torch.tensor(most, device=proposal.tokens.device).clamp(max=longest)
        if tree is not None:
            return replace(proposal, tree=tree.within(limits))
        counts = limits if proposal.counts is None else torch.minimum(limits, proposal.counts)
        return replace(proposal, counts=counts)

    def _verify(self, proposal: Proposal) -> tuple[Tensor, dict[int, Tensor]]:
        """Return what is chosen by `(B, γ+1, V)` after the pending token and every draft, and captured states."""
        session, target = self.session, self.session.target
        width, tree = proposal.width + 1, proposal.tree
        window = session.window(width) if tree is None else session.tree_window(tree.tree, 0, width)
        first = proposal.resume_layer
        if proposal.hidden is None:
            ids = torch.cat([session.pending.unsqueeze(1), proposal.tokens], dim=1)
            hidden = target.embed_at(ids, window, session.cache)
        elif proposal.hidden.shape[1] == width:
            hidden = proposal.hidden
        else:
            tail = session.window(1, offset=width - 1)
            last = target.embed_at(proposal.tokens[:, -1:], tail, session.cache)
            last = session.run(last, tail, 0, first)
            hidden = torch.cat([proposal.hidden, last], dim=1)
        states: dict[int, Tensor] = {}
        for layer in proposal.capture:
            hidden = states[layer] = session.run(hidden, window, first, layer)
            first = layer
        logits = target.logits(session.run(hidden, window, first))
        return session.target_scores(logits, proposal), states

    def _commit(self, blocks: list[list[int]], verdict: Verdict | None = None) -> None:
        """Append each row's block as far as its stop rule allows, count it, emit it, and drop ended rows."""
        session = self.session
        self.stats.moments.append(time.perf_counter_ns())
        going = []
        for position, (row, block) in enumerate(zip(session.rows, blocks, strict=True)):
            added, ended = self.stop.extend(row, block)
            stats = self.stats.rows[row.index]
            if verdict is None:
                stats.emitted += added
            else:
                drafted = verdict.drafted_within(position, added) if ended else verdict.drafted[position]
                accepted = min(verdict.accepted[position], added)
                stats.count(drafted, accepted, added, verdict.refused(position, added))
            stats.arrived.append(stats.emitted)
            if self.emit is not None:
                self.emit(row.index, row.tokens[len(row.tokens) - added :])
            if not ended:
                going.append(position)
        if len(going) < len(session.rows):
            if going:
                if self.drafter is not None:
                    self.drafter.keep_rows(going)
                session.keep_rows(going)
            else:
                session.rows = []


@dataclass(frozen=True, slots=True)
class Plan:
    """How one session is decoded: who drafts, through which layers the target runs, in which loop."""

    drafter: Drafter
    layers: Sequence[nn.Module] | None = None
    """A view of the target's layers for prefill and verify passes; None leaves the choice to the engine."""
    loop: type[Decoding] = Decoding


class Planner(Protocol):
    """What the engine needs of a draft strategy."""

    def plan(self, session: Session, params: DraftParams) -> Plan:
        """Return how `session` is decoded with `params`."""

    def max_draft(self, params: DraftParams) -> int:
        """Return the longest proposal `params` can lead to."""


def decode(
    target: Target,
    prompts: list[list[int]],
    strategy: Planner | None,
    params: DraftParams | None,
    max_new_tokens: int,
    sampler: Sampler,
    stop: StopRule,
    emit: Emit | None = None,
    rules: Rules | None = None,
) -> tuple[list[list[int]], Stats]:
    """Open a session for `prompts` and decode it; `params=None` decodes plainly. Return new tokens and statistics."""
    stats = Stats.empty(len(prompts))
    most = 0 if strategy is None or params is None else strategy.max_draft(params)
    session = open_session(target, prompts, max_new_tokens, most, sampler, rules)
    if strategy is None or params is None:
        session.layers = grouped_layers(session)
        return Decoding(session, None, stop, stats, emit).run(), stats
    plan = strategy.plan(session, params)
    session.layers = plan.layers or grouped_layers(session)
    return plan.loop(session, plan.drafter, stop, stats, emit).run(), stats
