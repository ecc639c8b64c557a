"""Committed text on which a candidate draft is scored, in one read-only pass for all positions.

Lossless decoding emits the target's own text whatever the draft, so comparing a draft with the target along that text
gives its acceptance exactly: bits under greedy decoding, the overlap Σ_v min(p, q) under sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.laws import Scored
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Session, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.sublayers import View
from ssd_infer.engine.target import Target
from ssd_infer.tuning.scratch import Own, ScratchCache, ScratchWindow
from ssd_infer.tuning.text_states import choices

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 96, 48


@dataclass(frozen=True, slots=True)
class Scores:
    """What one candidate does at every position `(B, T)`: chance of acceptance, and its top probability."""

    acceptance: Tensor
    confidence: Tensor

    @property
    def mean(self) -> float:
        """Mean acceptance of a single drafted token."""
        return float(self.acceptance.mean())


@dataclass(slots=True)
class CalibrationSet:
    """T committed positions of every row, and what the target chooses there: tokens, or distributions."""

    session: Session
    starts: list[int]
    ids: Tensor
    reference: Tensor
    """Target's tokens `(B, T)` under greedy decoding, its distributions `(B, T, V)` under sampling."""
    states: dict[int, Tensor]
    """Full-model hidden states `(B, T, d)` after the layers asked for."""
    own: Own = "diagonal"
    head: DraftHead | None = None
    """What candidates score their states by; None: the target's own head."""

    @property
    def target(self) -> Target:
        """The model whose choices these are."""
        return self.session.target

    @property
    def width(self) -> int:
        """T, the positions of each row."""
        return int(self.ids.shape[1])

    def window(self, branches: int = 1, own: Own | None = None) -> ScratchWindow:
        """Open a scratch window on all positions, each row repeated for `branches` candidates."""
        starts = [start for start in self.starts for _ in range(branches)]
        return ScratchWindow(self.session.geometry, starts, self.width, own or self.own)

    def keep_rows(self, kept: list[int]) -> None:
        """Drop the rows not named in `kept`, as the session does."""
        index = torch.tensor(kept, device=self.ids.device)
        self.starts = [self.starts[position] for position in kept]
        self.ids, self.reference = self.ids[index], self.reference[index]
        self.states = {layer: state[index] for layer, state in self.states.items()}

    @torch.inference_mode()
    def score(self, view: View) -> Scores:
        """Run a candidate on all positions and compare its choices with the target's."""
        hidden = self.states_with(view)
        if self.head is None:
            return self.compare(self.target.logits(hidden))
        rule = partial(self.session.committed_scores, starts=self.starts)
        scored = self.session.ruled(self.head.scores(hidden), rule)
        return compare(self.session.sampler, scored, self.reference)

    @torch.inference_mode()
    def states_with(self, view: View | None) -> Tensor:
        """Return the last hidden states `(B, T, d)` of a candidate at all positions; None: of the target itself."""
        target, window = self.target, self.window()
        cache = ScratchCache(self.session.cache)
        return target.run(target.embed_at(self.ids, window, cache), window, cache, layers=view)

    def compare(self, logits: Tensor) -> Scores:
        """Score a candidate's `(B, T, V)` logits."""
        scores = self.session.committed_scores(logits, self.starts)
        return compare(self.session.sampler, Scored(scores), self.reference)


@torch.inference_mode()
def gather(
    session: Session, starts: list[int], width: int, own: Own = "diagonal", capture: tuple[int, ...] = ()
) -> CalibrationSet:
    """Let the full model choose at `width` committed positions from `starts[b]` on, in one scratch pass.

    Hidden states after each layer in `capture` (ascending) are kept.
    """
    target = session.target
    ids = token_ids(session, starts, width)
    window = ScratchWindow(session.geometry, starts, width, "diagonal")
    cache, states, first = ScratchCache(session.cache), {}, 0
    hidden = target.embed_at(ids, window, cache)
    for layer in capture:
        hidden = states[layer] = target.run(hidden, window, cache, first, layer)
        first = layer
    logits = session.committed_scores(target.logits(target.run(hidden, window, cache, first)), starts)
    return CalibrationSet(session, list(starts), ids, choices(session.sampler, logits), states, own)


def token_ids(session: Session, starts: list[int], width: int) -> Tensor:
    """Return the tokens `(B, width)` at `width` positions of every row from `starts[b]` on."""
    rows = [row.tokens[start : start + width] for row, start in zip(session.rows, starts, strict=True)]
    return torch.tensor(rows, dtype=torch.long, device=session.target.device)


def compare(sampler: Sampler, scored: Scored, reference: Tensor) -> Scores:
    """Score a draft's scores `(…, B, T, K)` against what the target chooses, as `choices` returns it.

    A draft that scores some tokens alone is accepted with Σ_S min(p, q), p being the target's law over all of V.
    """
    if sampler.greedy:
        top, column = scored.logits.float().softmax(dim=-1).max(dim=-1)
        return Scores((scored.tokens(column) == reference).float(), top)
    q = sampler.probs(scored.logits)
    if scored.ids is not None:
        reference = reference.expand(*q.shape[:-1], -1).gather(-1, scored.ids.expand(q.shape))
    return Scores(torch.minimum(q, reference).sum(dim=-1), q.amax(dim=-1))


def write_calibration_set(
    target: Target,
    prompts: list[list[int]],
    sampling: SamplingParams,
    new_tokens: int = NEW_TOKENS,
    count: int = PROMPTS,
) -> CalibrationSet:
    """Let the target continue `count` of the `prompts` plainly; its own text after the first token is the material."""
    shown = [row[-PROMPT_TOKENS:] for row in prompts[:count]]
    session = open_session(target, shown, new_tokens, 0, Sampler(sampling, target.device, seed=0))
    rows = list(session.rows)
    Decoding(session, None, StopRule(), Stats.empty(len(rows))).run()
    session.rows = rows  # all rows end together, so the cache still holds every one of them
    return gather(session, [row.prompt_length for row in rows], new_tokens - 1)
