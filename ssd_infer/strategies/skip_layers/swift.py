"""Draft `swift`: the skip set is searched while decoding, on the text being decoded (SWIFT, arXiv 2410.06916).

All state belongs to one stream: nothing is known at its start and nothing survives its end. What differs from the
paper: the context window is the last W committed tokens, prompt included, so drafting starts with the first new token;
every candidate's γ, threshold and worth come from the speedup its scores predict, drafts stay within reach of what
recent rounds accepted; search may take only a set share of the decoding time; and a draft that loses by its own running
count is switched off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.sublayers import SkipSet, unsupported_reason
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, Resolved, at_least
from ssd_infer.strategies.draft_head import (
    best_by_coverage,
    prompts_of,
    resolved_head,
    saved_seconds,
    with_head,
)
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.skip_layers import SWIFT
from ssd_infer.strategies.skip_layers.branches import look_back
from ssd_infer.strategies.skip_layers.episode import Episode, StopRules
from ssd_infer.strategies.skip_layers.guard import TRUST_AFTER
from ssd_infer.strategies.skip_layers.online import RATIOS, AcceptanceDrop, Proposer, Reach, RunningGain
from ssd_infer.strategies.skip_layers.stream_study import study_search
from ssd_infer.strategies.skip_layers.view_draft import ViewDraft
from ssd_infer.strategies.streams import stream_studies
from ssd_infer.tuning import scratch
from ssd_infer.tuning.prediction import GAMMAS
from ssd_infer.tuning.rounds import steady_speedup
from ssd_infer.tuning.sublayer_costs import SublayerCosts, cached_sublayer_costs

if TYPE_CHECKING:
    from ssd_infer.strategies.study import Study, StudyContext

THRESHOLDS = (0.0, 0.4, 0.8)
"""Confidence thresholds a candidate may choose from; 0.8 is the paper's."""
HELD_AFTER, PROMISING = 2, 1.5
"""Rounds after which a set that still is expected to gain, and expected speedup from which on any set, lets the search
for a better one go on at its full share."""
WINDOWS = (32, 24, 16, 8)
"""Lengths of the context."""
USUAL_ACCEPTANCE = 0.6
"""Acceptance by which heads are compared before any set is known; agreement of 135M models without a quarter of their
sublayers was .53."""
EXPECTED_TOKENS = 512
"""Tokens still to come that searching may count on: a stream may end long before its limit."""


@dataclass(slots=True)
class SwiftParams(HeadParams):
    """How much to skip, how far to draft, and how to search."""

    ratio: float | Auto = "auto"
    """Share of the sublayers between first and last layer that is skipped (paper: 0.45); auto tries a few."""
    gamma: int = 25
    """Longest draft."""
    confidence: float | Auto = "auto"
    """A row stops after a token below this probability (paper: 0.8); auto lets every candidate choose."""
    window: int | Auto = "auto"
    """W, the tokens candidates are scored on; auto is the longest of 32, 24, 16 and 8 that there is time for."""
    interval: int = 1
    """Rounds between two candidates."""
    bayes_every: int = 25
    """Every how many-th candidate comes from the posterior instead of chance."""
    max_score: float = 0.95
    tolerance: int = 300
    max_trials: int = 1000
    share: float = 0.06
    """Most of the decoding time that searching may take."""
    fruitless: float = 0.02
    """The same until a set promises much or holds in practice: what a model that cannot draft pays for trying."""
    worth: float = 1.1
    """Least predicted speedup of a set that drafts: the best of several on a short window promises too much."""
    seed: int = 0

    def problems(self, target: Target | None) -> list[Problem]:
        """Check counts >= 1 and that shares lie in [0, 1]."""
        names = ("gamma", "interval", "bayes_every", "tolerance", "max_trials")
        found = HeadParams.problems(self, target)
        found += [problem for name in names for problem in at_least(name, getattr(self, name), 1)]
        found += at_least("window", self.window, WINDOWS[-1])
        if not self.worth >= 1:
            found.append(Problem("draft_params.worth", "must be >= 1", self.worth, "try 1.1"))
        for name in ("ratio", "confidence", "max_score", "share", "fruitless"):
            value = getattr(self, name)
            if not isinstance(value, str) and not 0 <= value <= 1:
                found.append(Problem(f"draft_params.{name}", "must be in [0, 1]", value))
        return found


class Swift(ViewDraft):
    """Draft with the best skip set this stream has found so far; search on between rounds."""

    info = SWIFT
    Params = SwiftParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Start with no skip set."""
        super().__init__(session, params)
        self.params = cast(SwiftParams, params)
        context = max(len(row.tokens) + row.limit // 2 for row in session.rows)
        greedy = session.sampler.greedy
        saved = saved_seconds(session.target, params, prompts_of(session), not greedy)
        self.costs: SublayerCosts = cached_sublayer_costs(
            session.target, context, not greedy, len(session.rows)
        ).cheaper(saved)
        self.episode: Episode | None = None
        self.gain: RunningGain | None = None
        self.drop, self.reach = AcceptanceDrop(), Reach(1, 0.0)
        self._budget = _Budget()
        self._rounds = self._learned = self._wait = 0
        self._counts = {"episodes": 0, "trials": 0, "switched_off": 0}

    def begin(self) -> None:
        """Search on the prompt's tail, as far as the time allows at once."""
        self._budget.begin()
        self.head.follow(self.session.rows)
        self._open()
        while self.episode is not None and not self.episode.over and self.episode.proposer.seeds:
            if not self._try():
                break

    def propose(self, limit: int) -> Proposal:
        """Search a little, then draft; draft nothing while no set is expected to gain."""
        self._rounds += 1
        self.head.follow(self.session.rows)  # candidates are scored before anything is drafted
        if self.episode is None and self._rounds >= self._wait:
            self._open()
        if self.episode is not None and not self.episode.over and self._rounds % self.params.interval == 0:
            self._try()
        if self.gain is None:
            return self.session.empty()
        return self.extend(min(self.reach.length, limit), self.session.pending)

    def observe(self, feedback: Feedback) -> None:
        """Update the running gain; switch off a losing set, search anew when acceptance fell."""
        if self.gain is None:
            return
        rows = len(feedback.accepted)
        accepted, drafted = sum(feedback.accepted) / rows, sum(feedback.counts) / rows
        self.gain.learn(accepted, drafted)
        self.reach.learn(accepted, drafted)
        self._learned += 1
        if self._learned >= TRUST_AFTER and self.speedup < 1.0:
            self._switch_off()
        elif self.drop.learn(sum(feedback.accepted), sum(feedback.counts)):
            self._open()

    def keep_rows(self, kept: list[int]) -> None:
        """Score on the remaining rows only."""
        if self.episode is not None:
            self.episode.material.keep_rows(kept)

    @property
    def speedup(self) -> float:
        """What recent rounds and measured costs say drafting gives; 1 while nothing is drafted."""
        return 1.0 if self.gain is None else self.gain.speedup(self.costs, self.skips)

    def _open(self) -> None:
        """Start a search on the last W committed tokens, if there are enough and time for it."""
        session, params = self.session, self.params
        width = self._width()
        if not width:
            self._wait = self._rounds + WINDOWS[-1]
            return
        with self._budget.spend():
            material, states = look_back(session, width)
            material.head = self.head
            ratios = RATIOS if isinstance(params.ratio, str) else (params.ratio,)
            seed = params.seed + self._counts["episodes"]
            proposer = Proposer(session.target.num_layers, ratios, params.bayes_every, seed)
            proposer.plant(states)
        if self.gain is not None:
            proposer.seeds.insert(0, self.skips)
        rules = StopRules(params.max_score, params.tolerance, params.max_trials)
        gammas = (*(g for g in GAMMAS if g < params.gamma), params.gamma)
        thresholds = THRESHOLDS if isinstance(params.confidence, str) else (params.confidence,)
        self.episode = Episode(material, proposer, self.costs, rules, gammas, thresholds)
        self._counts["episodes"] += 1
        self._try()

    def _width(self) -> int:
        """Return the longest window there is text and time for, 0 if there is none."""
        chosen = self.params.window
        widths = WINDOWS if isinstance(chosen, str) else (chosen,)
        text = min(self.session.lengths)
        fitting = [w for w in widths if w <= text and self._affords(1.5 * self._pass_seconds(w))]
        return fitting[0] if fitting else 0

    def _try(self) -> bool:
        """Score one candidate if there is time for it, adopt it if it is best; return whether it was scored."""
        episode = self.episode
        if episode is None:
            return False
        skips = episode.next()
        if not self._affords(self._pass_seconds(episode.material.width) * self.costs.skipping(skips).c):
            episode.put_back(skips)
            return False
        with self._budget.spend():
            better = episode.score(skips)
        self._counts["trials"] += 1
        if better:
            self._adopt(episode)
        return True

    def _adopt(self, episode: Episode) -> None:
        """Draft with the episode's best set from now on, or not at all if even that is expected to lose."""
        prediction, skips = episode.prediction, episode.best
        if prediction is None or skips is None or prediction.speedup < self.params.worth:
            self.gain = None
            return
        self.use(skips)
        self.confidence = prediction.confidence
        self.gain = RunningGain(prediction.tau - 1, prediction.drafted)
        self.drop, self.reach = AcceptanceDrop(), Reach(prediction.gamma, prediction.tau - 1)
        self._learned = 0

    def _switch_off(self) -> None:
        """Decode plainly for a while, each time longer; then search anew."""
        self.gain = self.episode = None
        self._counts["switched_off"] += 1
        self._wait = self._rounds + WINDOWS[0] * 2 ** (self._counts["switched_off"] - 1)

    def _affords(self, seconds: float) -> bool:
        """Tell whether `seconds` more of searching stay within the share that its success so far deserves."""
        held = self._learned >= HELD_AFTER and self.speedup >= 1.0
        fruitful = self.gain is not None and (held or self.speedup >= PROMISING)
        share = self.params.share if fruitful else min(self.params.share, self.params.fruitless)
        ahead = min(EXPECTED_TOKENS, max(row.remaining for row in self.session.rows))
        left = self.costs.whole.plain * ahead
        return self._budget.affords(seconds, share, left)

    def _pass_seconds(self, width: int) -> float:
        """Estimate the seconds of a full pass over `width` positions a row."""
        whole = self.costs.whole
        widest = whole.widths[-1]
        one = whole.step_at(width) + whole.num_layers * whole.layer_at(width)
        return one * max(1.0, width / widest)

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent searching; they are part of the draft seconds."""
        return {"search": self._budget.spent}

    def report(self) -> dict[str, Any]:
        """Return the set in use, how the search went, and why nothing is drafted if so."""
        found = None if self.episode is None else self.episode.best
        best = self.skips if self.gain is not None else found or SkipSet()
        return {
            **self._counts,
            "search_seconds": self._budget.spent,
            "skip_attention": sorted(best.attention),
            "skip_mlp": sorted(best.mlp),
            "matchness": 0.0 if self.episode is None else self.episode.matchness,
            "expected_speedup": self.speedup,
            "drafting": self.gain is not None,
            "note": self._note(),
        }

    def _note(self) -> str:
        if self.gain is not None:
            return ""
        if self._counts["switched_off"] and self.episode is None:
            return "drafting was switched off: by its own running count it lost"
        if self.episode is None:
            return "nothing was drafted: the stream is too short for a search"
        return "nothing was drafted: no skip set tried is expected to gain"

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Decode streams whose text changes with nothing known beforehand, where they were asked for."""
        return stream_studies(cls, context, partial(study_search, cls))

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need layers whose sublayers can be left out, and one between first and last."""
        if target.num_layers < 3:
            return "first and last layer are always kept, and the model has no other"
        return unsupported_reason(target) or scratch.unsupported_reason(target)

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Measure costs once a model; the search itself belongs to the stream."""
        costs = cached_sublayer_costs(target, max(map(len, prompts)) + 32, do_sample)
        option, facts = best_by_coverage(
            target, cast(SwiftParams, params), prompts, do_sample, partial(_usual_speedup, costs)
        )
        chosen = with_head(cast(SwiftParams, params), option)
        return Resolved(resolved_head(target, chosen, prompts, target.num_layers), search=facts)


def _usual_speedup(costs: SublayerCosts, saved: float, coverage: float) -> float:
    """Return about the speedup of a set still to be found, with a head that saves so much and covers so much."""
    layers = range(1, costs.whole.num_layers - 1)
    skips = SkipSet.of(layers[::2], layers[1::2])
    rounds = costs.cheaper(saved).skipping(skips)
    return steady_speedup(rounds, USUAL_ACCEPTANCE * coverage, GAMMAS)


class _Budget:
    """Seconds searching has taken, and may take: a share of the decoding so far and still to come."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Start counting the decoding's own time."""
        self._began = time.perf_counter()

    def affords(self, seconds: float, share: float, left: float) -> bool:
        """Tell whether `seconds` more stay within `share`, with `left` seconds of decoding to come."""
        elapsed = time.perf_counter() - self._began - self.spent
        return self.spent + seconds <= share * (elapsed + left)

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Count the body's seconds as search."""
        start = time.perf_counter()
        yield
        self.spent += time.perf_counter() - start
