"""Draft `early_exit+del`: exit layer, draft length and stop threshold follow the text (DEL, arXiv 2504.05598).

After each verify pass the head is applied to the hidden states of every candidate exit at the drafted positions, up to
and including the draft's first mismatch. How often such a shadow token is the target's own token tells what each exit
would be worth now; the next round uses the exit and γ of highest tokens per measured cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, Resolved, at_least
from ssd_infer.strategies.draft_head import prompts_of, resolved_head, saved_seconds, with_head
from ssd_infer.strategies.early_exit import EARLY_EXIT_DEL
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.early_exit.exit_calibration import cached_profile
from ssd_infer.strategies.early_exit.exit_heads import best_of_heads
from ssd_infer.strategies.early_exit.shadow import Choice, Shadows, up_to_first_mismatch
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.head_report import head_tables
from ssd_infer.strategies.stepwise import Stepwise
from ssd_infer.strategies.stream_report import stream_plots, stream_tables
from ssd_infer.strategies.streams import decode_streams, stream_studies
from ssd_infer.tuning import scratch
from ssd_infer.tuning.calibration_text import compare, gather
from ssd_infer.tuning.race import SURE, least_running, measured_speedup
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs
from ssd_infer.tuning.text_states import choices

if TYPE_CHECKING:
    from ssd_infer.report.table import Plot, Table
    from ssd_infer.strategies.study import Study, StudyContext

_HEAD_ELEMENTS = 1 << 25
"""Most logits of shadow tokens held at once."""
_PROBE_AFTER = 16
"""Rounds without a draft after which one token is drafted, so that a change of the text is noticed; the next probe
comes after twice as many."""


@dataclass(slots=True)
class EarlyExitDelParams(HeadParams):
    """Which exits compete, how far a draft may go, and how fast the past fades."""

    gamma: int = 18
    """Longest draft."""
    exits: list[int] | None = None
    """Candidate exit layers; None spreads `candidates` of them over the first half."""
    candidates: int = 5
    omega: float = 0.95
    prompt: int = 32
    """Last prompt positions the statistics start from."""
    stop: bool = True
    """End a draft at a token less confident than halfway between the exit's hits and misses."""
    guard: float | Auto = "auto"
    """Least speedup, by acceptance and measured costs, an exit must promise; auto: 1, more where decoding proved slower
    than its costs."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check exits between 1 and L-1 and counts >= 1."""
        names = ("gamma", "candidates", "prompt")
        found = HeadParams.problems(self, target)
        found += [problem for name in names for problem in at_least(name, getattr(self, name), 1)]
        if not 0 < self.omega <= 1:
            found.append(Problem("draft_params.omega", "must be in (0, 1]", self.omega, "try 0.95"))
        last = None if target is None else target.num_layers - 1
        wrong = [item for item in self.exits or [] if item < 1 or (last is not None and item > last)]
        if wrong or self.exits == []:
            rule = f"must hold layers from 1 to {'L-1' if last is None else last}"
            found.append(Problem("draft_params.exits", rule, self.exits))
        if not isinstance(self.guard, str) and not self.guard >= 0:
            found.append(Problem("draft_params.guard", "must be >= 0", self.guard, "try 1"))
        return found

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """Return the candidate exits, ascending."""
        if self.exits is not None:
            return tuple(sorted(set(self.exits)))
        deepest = max(1, num_layers // 2)
        count = min(self.candidates, deepest)
        return tuple(sorted({max(1, round(deepest * (i + 1) / count)) for i in range(count)}))


class EarlyExitDel(Stepwise):
    """Early exit whose exit layer and length are chosen anew each round."""

    info = EARLY_EXIT_DEL
    Params = EarlyExitDelParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Price every exit and draft length; nothing is known of acceptance yet."""
        super().__init__(session, params)
        self.params = cast(EarlyExitDelParams, params)
        exits = self.params.layers(session.target.num_layers)
        self.shadows = Shadows(exits, self.params.omega)
        context = max(len(row.tokens) + row.limit // 2 for row in session.rows)
        greedy = session.sampler.greedy
        costs = cached_sublayer_costs(session.target, context, not greedy, len(session.rows)).whole
        saved = saved_seconds(session.target, params, prompts_of(session), not greedy)
        of_exits = [costs.exit(exit_layer).cheaper(saved) for exit_layer in exits]
        self._cost = [one.c for one in of_exits]
        lengths = range(1, self.params.gamma + 1)
        self._verify = [[one.v(gamma) for gamma in lengths] for one in of_exits]
        self.choice = Choice(exits[0], 1, 0.0)
        self._drafted: dict[int, list[Tensor]] = {}
        self._least = 1.0 if isinstance(self.params.guard, str) else self.params.guard
        self._idle = 0
        self._next_probe = _PROBE_AFTER
        self._used: dict[str, int] = {}

    def begin(self) -> None:
        """Start the statistics on the last prompt positions."""
        session = self.session
        width = min(self.params.prompt, *session.lengths)
        starts = [length - width for length in session.lengths]
        self.head.follow(session.rows)
        material = gather(session, starts, width, capture=self.shadows.exits)
        everything = torch.ones(len(starts), width, dtype=torch.bool, device=material.ids.device)
        states = [material.states[layer] for layer in self.shadows.exits]
        self._learn(states, material.reference, everything, partial(session.committed_scores, starts=starts))

    def propose(self, limit: int) -> Proposal:
        """Draft at the exit and length that promise most; nothing while none promises a gain, but for a probe."""
        self.choice = choice = self.shadows.choose(self._cost, self._verify)
        gamma = choice.gamma
        if choice.speedup <= self._least:
            self._idle += 1
            if self._idle < self._next_probe:
                return self.session.empty()
            gamma, self._next_probe = 1, 2 * self._next_probe + _PROBE_AFTER
        self.resume_layer = choice.exit_layer
        self.confidence = self.shadows.counts[choice.exit_layer].threshold if self.params.stop else 0.0
        self.capture = tuple(layer for layer in self.shadows.exits if layer > choice.exit_layer)
        self._drafted = {layer: [] for layer in self.shadows.exits if layer <= choice.exit_layer}
        key = f"exit {choice.exit_layer}, γ {gamma}"
        self._used[key] = self._used.get(key, 0) + 1
        return self.extend(min(gamma, limit), self.session.pending)

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run the layers up to the exit, keeping the states after every candidate on the way."""
        session, target = self.session, self.session.target
        window = session.window(1, offset)
        hidden: Tensor = target.embed_at(token.unsqueeze(1), window, session.cache)
        first = 0
        for layer, kept in self._drafted.items():
            hidden = target.run(hidden, window, session.cache, first, layer)
            kept.append(hidden)
            first = layer
        return hidden

    def observe(self, feedback: Feedback) -> None:
        """Compare every exit's shadow tokens with the target's, up to the draft's first mismatch."""
        width = feedback.proposal.width
        counted = up_to_first_mismatch(feedback.accepted, feedback.counts, width).to(feedback.logits.device)
        reference = choices(self.session.sampler, feedback.logits[:, :width])
        states = [
            torch.cat(self._drafted[layer], dim=1)
            if layer in self._drafted
            else feedback.states[layer][:, :width]
            for layer in self.shadows.exits
        ]
        self.shadows.fade()
        scored = partial(self.session.target_scores, proposal=feedback.proposal)
        self._learn(states, reference, counted, scored)

    def _learn(
        self,
        states: list[Tensor],
        reference: Tensor,
        counted: Tensor,
        scored: Callable[[Tensor], Tensor],
    ) -> None:
        """Apply the head to the exits' states `(B, T, d)`, in as few passes as memory allows, and count.

        `scored` returns what a token is chosen by, of logits `(exits, B, T, V)`.
        """
        target, sampler = self.session.target, self.session.sampler
        size = states[0].shape[0] * states[0].shape[1] * target.vocab_size
        step = max(1, _HEAD_ELEMENTS // size)
        hits, confidence = [], []
        for first in range(0, len(states), step):
            found = self.head.scores(torch.stack(states[first : first + step]))
            scores = compare(sampler, self.session.ruled(found, scored), reference)
            hits.append(scores.acceptance)
            confidence.append(scores.confidence)
        self.shadows.learn(torch.cat(hits), torch.cat(confidence), counted)

    def report(self) -> dict[str, Any]:
        """Return how often each exit and length was used, and what each exit is believed to be worth now."""
        beliefs = {str(layer): counts.acceptance for layer, counts in self.shadows.counts.items()}
        return {"used": dict(self._used), "acceptance": beliefs, "rounds_without_draft": self._idle}

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Decode streams whose text changes with nothing known beforehand, where they were asked for."""

        def run(context: StudyContext) -> dict[str, Any]:
            return decode_streams(context, cls, cls.parse({}, None))

        return stream_studies(cls, context, run)

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its head, and acceptance along the streams."""
        return [*head_tables(row), *stream_tables(row)]

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw acceptance along the streams."""
        return stream_plots(row)

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need what early exit needs."""
        return EarlyExit.applicable(target) or scratch.unsupported_reason(target)

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Measure costs once a model, and decode plainly where no exit is predicted, or measured, to gain anything.

        Following the text costs a little more than a fixed exit, so a prediction that is not high is put to a race.
        """
        resolved = cast(EarlyExitDelParams, params)
        cached_sublayer_costs(target, max(map(len, prompts)) + 32, do_sample)
        deepest = resolved.layers(target.num_layers)[-1]
        if resolved.guard != "auto":
            return Resolved(resolved_head(target, resolved, prompts, deepest))
        known = cached_profile(target, prompts, do_sample)
        best, option, facts = best_of_heads(target, known, resolved, prompts)
        resolved = resolved_head(target, with_head(resolved, option), prompts, deepest)
        if best.speedup < 1.0:
            chosen = f"exit {best.exit_layer}, γ {best.gamma}"
            note = f"plain decoding: the best predicted speedup of any exit is {best.speedup:.2f} ({chosen})"
            return Resolved(None, note, best.speedup)
        if best.speedup >= SURE:
            return Resolved(replace(resolved, guard=1.0), search=facts)
        measured = measured_speedup(target, cls, resolved, prompts, do_sample)
        if measured < 1.0:
            note = f"plain decoding: predicted {best.speedup:.2f}×, measured {measured:.2f}×"
            return Resolved(None, note, best.speedup)
        least = round(least_running(best.speedup, measured), 3)
        return Resolved(replace(resolved, guard=least), f"measured {measured:.2f}×", measured, facts)

    @classmethod
    def head_depth(cls, target: Target, params: DraftParams) -> int:
        """Return the deepest exit."""
        return cast(EarlyExitDelParams, params).layers(target.num_layers)[-1]

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return the longest draft."""
        return cast(EarlyExitDelParams, params).gamma
