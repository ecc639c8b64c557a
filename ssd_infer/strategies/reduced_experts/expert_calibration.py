"""Resolve `auto` of `reduced_experts`: draft on the prompts once a model, then choose by what it would have cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.offload.layout import moe_layers
from ssd_infer.offload.offload import resident_of
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.draft_head import best_by_coverage, resolved_head, saved_seconds, with_head
from ssd_infer.strategies.reduced_experts.expert_costs import CostMeter
from ssd_infer.strategies.reduced_experts.expert_draft import ExpertDraft
from ssd_infer.strategies.reduced_experts.expert_params import ReducedExpertsParams
from ssd_infer.strategies.reduced_experts.record import NOTHING, Rounds, Rule, Trust, calibrate_trust, play
from ssd_infer.tuning.costs import Curve, RoundCosts
from ssd_infer.tuning.draft_heads import FULL
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.race import raced_speedups
from ssd_infer.tuning.rounds import steady_speedup

MAX_GAMMA = 16
STOPS = (0.0, 0.05, 0.1, 0.2, 0.4)
WINDOWS = (12, 24, 48)
"""Most drafts of an adaptive round that compete with the most that is allowed."""
HOPE, RACED = 0.95, 4
"""Candidates raced against plain decoding: at most so many, of those whose predicted speedup is at least `HOPE`."""
TURNS = 6
"""Timed turns of a race: prompts differ more in what they gain than with other drafts, for their texts' experts do."""
GAIN = 1.03
"""Speedup the best of a race has to show: the best of several looks a little better than it is."""
USUAL_COST, USUAL_ACCEPTANCE = 0.6, 0.8
"""Cost of a draft in plain steps, and its acceptance, by which heads are compared before any draft was tried."""
_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 6, 64, 64


@dataclass(frozen=True, slots=True)
class Profile:
    """What one k_draft did on the calibration prompts, and what it costs."""

    rounds: Rounds
    costs: RoundCosts
    """Of real rounds, which take longer than the passes they are made of."""
    unions: dict[int, float]
    """U(T) by T, experts a layer."""
    top_k: int

    def best(self, rules: Iterable[Rule]) -> tuple[float, Rule]:
        """Return the rule with the highest predicted speedup, the first of equals, and that speedup."""
        text = self.rounds.text()
        found = [(self.speedup(play(text, rule)), rule) for rule in rules]
        return max(found, key=lambda option: option[0])

    def speedup(self, rounds: Sequence[tuple[int, int]]) -> float:
        """Return the predicted speedup of `rounds` of (emitted, drafted) tokens."""
        spent = sum(self.costs.seconds(drafted) for _, drafted in rounds)
        return sum(emitted for emitted, _ in rounds) * self.costs.plain / spent if rounds else 0.0

    def describe(self) -> str:
        """Say how many experts T tokens need together, as multiples of what one needs."""
        at = [f"U({width}) {size / self.top_k:.1f}k" for width, size in self.unions.items()]
        return ", ".join(at[1:4:2]) or at[0]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to draft with everything resolved, the speedup predicted for it, and what to say of it."""

    predicted: float
    params: ReducedExpertsParams
    details: str


_profiles: Memo[Profile] = Memo()
_plain: Memo[float] = Memo()


def resolve_reduced_experts(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto`. With k_draft, γ and, in mode adaptive, τ given nothing is measured and nothing is refused."""
    offloaded = resident_of(target.layers) is not None
    held = offloaded if params.at_hand == "auto" else bool(params.at_hand)
    params = replace(params, at_hand=held and offloaded)
    known = params.mode == "lossless" or params.tau_accept != "auto"
    if params.k_draft != "auto" and params.gamma != "auto" and known:
        stop = 0.0 if params.confidence == "auto" else params.confidence
        follow = params.follow is True
        given = replace(params, confidence=stop, prefetch=bool(params.prefetch), follow=follow)
        return Resolved(resolved_head(target, given, prompts, target.num_layers))
    params, facts = _with_head(target, params, prompts, do_sample)
    candidates = _adaptive if params.mode == "adaptive" else _lossless
    found = _decide(target, candidates(target, params, prompts, do_sample), prompts, do_sample)
    return replace(found, search=facts)


def _with_head(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> tuple[ReducedExpertsParams, dict[str, Any]]:
    """Return `params` with a head: the given one, or what promises most for a draft that is right as often as usual.

    What it leaves of the gain is not predicted further: drafts on the calibration prompts use it.
    """
    if params.mode == "adaptive":
        return with_head(params, FULL), {}

    def usual(saved: float, coverage: float) -> float:
        plain = _plain_step(target, prompts, do_sample)
        costs = RoundCosts(plain, USUAL_COST * plain, Curve((1,), (plain,))).cheaper(saved)
        return steady_speedup(costs, USUAL_ACCEPTANCE * coverage, (1, 2, 4, 8))

    option, facts = best_by_coverage(target, params, prompts, do_sample, usual)
    return resolved_head(target, with_head(params, option), prompts, target.num_layers), facts


def _lossless(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> list[Candidate]:
    """Return the rule with the best predicted speed for every k_draft and way to read."""
    found = []
    for entrant in _entrants(target, params):
        profile = cached_profile(target, entrant, prompts, do_sample)
        speedup, rule = profile.best(_rules(params, STOPS, math.inf))
        details = f"{_named(entrant)}, {_ruled(rule)}, {profile.describe()}"
        found.append(Candidate(speedup, _following(entrant, rule), details))
    return found


def _adaptive(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> list[Candidate]:
    """Calibrate τ for every k_draft and way to read; return the rule with the best predicted speed for each."""
    found = []
    for entrant in _entrants(target, params):
        profile = cached_profile(target, entrant, prompts, do_sample)
        trust = trust_of(profile.rounds, params)
        speedup, rule = profile.best(_rules(params, STOPS, trust.threshold))
        bound = "none trusted" if trust.bound is None else f"≤ {trust.bound:.1%} of {trust.count} wrong"
        details = (
            f"{_named(entrant)}, {_ruled(rule)}, window {rule.window}, τ {trust.threshold:.3f} "
            f"({bound}, {trust.coverage:.0%} of drafts), {profile.describe()}"
        )
        resolved = replace(_following(entrant, rule), tau_accept=trust.threshold, max_window=rule.window)
        found.append(Candidate(speedup, resolved, details))
    return found


def _rules(params: ReducedExpertsParams, stops: Iterable[float], threshold: float) -> list[Rule]:
    """Return every rule that what is given leaves open."""
    gammas = range(1, MAX_GAMMA + 1) if params.gamma == "auto" else [int(params.gamma)]
    chosen = stops if params.confidence == "auto" else (float(params.confidence),)
    ways = (False, True) if params.follow == "auto" else (bool(params.follow),)
    return [
        Rule(gamma, stop, follow, threshold, gamma if window is None else window)
        for follow in ways
        for window in _windows(params, threshold)
        for stop in chosen
        for gamma in gammas
    ]


def _windows(params: ReducedExpertsParams, threshold: float) -> list[int | None]:
    """Return the windows a rule may have; None, which is γ, where every draft is compared."""
    if threshold == math.inf:
        return [None]
    return [*(window for window in WINDOWS if window < params.max_window), params.max_window]


def _following(entrant: ReducedExpertsParams, rule: Rule) -> ReducedExpertsParams:
    return replace(entrant, gamma=rule.gamma, confidence=rule.stop, follow=rule.follow)


def _ruled(rule: Rule) -> str:
    return f"γ {'up to ' if rule.follow else ''}{rule.gamma}, stop below {rule.stop:g}"


def trust_of(rounds: Rounds, params: ReducedExpertsParams) -> Trust:
    """Return the given threshold with its record, or the calibrated one."""
    if isinstance(params.tau_accept, str):
        return calibrate_trust(rounds.judged(), params.eps)
    judged = rounds.judged()
    covered = [right for sure, right in judged if sure >= params.tau_accept]
    if not covered:
        return replace(NOTHING, threshold=params.tau_accept)
    return Trust(params.tau_accept, None, len(covered) / len(judged), len(covered))


def _decide(target: Target, found: list[Candidate], prompts: list[list[int]], do_sample: bool) -> Resolved:
    """Race the candidates with the best predictions and return the fastest; plain decoding when none wins its race.

    Costs are timed pass by pass; what the draft's reads push out of memory only shows when both decode, and it differs
    from candidate to candidate, so the order of the predictions is not taken for the order of the speeds either.
    """
    found = sorted(found, key=lambda candidate: candidate.predicted, reverse=True)
    raced = [candidate for candidate in found if candidate.predicted >= HOPE][:RACED]
    if not raced:
        note = f"plain decoding: the best predicted speedup is {found[0].predicted:.2f} ({found[0].details})"
        return Resolved(None, note, found[0].predicted)
    entrants = [candidate.params for candidate in raced]
    speeds = raced_speedups(target, ExpertDraft, entrants, prompts, do_sample, TURNS)
    measured, best = max(zip(speeds, raced, strict=True), key=lambda entry: entry[0])
    note = f"{best.details}, predicted {best.predicted:.2f}×, measured {measured:.2f}× on the calibration prompts"
    if measured < GAIN:
        return Resolved(None, f"plain decoding: {note}", measured)
    return Resolved(best.params, f"auto: {note}", best.predicted)


def _entrants(target: Target, params: ReducedExpertsParams) -> list[ReducedExpertsParams]:
    """Return what competes: drafts of one, two and half the experts; reading ahead or not."""
    counts = [params.k_draft]
    if params.k_draft == "auto":
        top_k = min(layer.top_k for layer in moe_layers(target.layers))
        counts = sorted({1, min(2, -(-top_k // 2)), -(-top_k // 2)})
    ways = [bool(params.prefetch)]
    if params.prefetch == "auto":
        ways = [True, False] if resident_of(target.layers) is not None else [False]
    return [replace(params, k_draft=count, prefetch=way) for count in counts for way in ways]


def _named(entrant: ReducedExpertsParams) -> str:
    return f"top-{entrant.k_draft}" + (", reading ahead" if entrant.prefetch else "")


def cached_profile(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Profile:
    """Return this model's profile of one k_draft, made on `prompts` the first time."""
    resident = resident_of(target.layers)
    several = len(prompts) > 1
    drafted = (params.k_draft, params.renorm, params.at_hand, params.prefetch, params.head, params.head_size)
    key = (*drafted, do_sample, several, id(resident))
    return _profiles.cached(target.model, key, lambda: make_profile(target, params, prompts, do_sample))


def make_profile(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Profile:
    """Draft on the prompts at full length, alone, and time passes over the texts that come out."""
    sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
    drafting = replace(params, mode="lossless", gamma=MAX_GAMMA, confidence=0.0, follow=False)
    rounds, meter, spent = Rounds(), CostMeter(target), 0.0
    for prompt in prompts[:_PROMPTS]:
        start = prompt[-_PROMPT_TOKENS:]
        session = open_session(target, [start], _NEW_TOKENS, MAX_GAMMA, sampler)
        drafter = ExpertDraft(session, drafting)
        drafter.rounds = rounds
        stats = Stats.empty(1)
        output = Decoding(session, drafter, StopRule(), stats).run()[0]
        spent += stats.total.seconds["draft"] + stats.total.seconds["verify"]
        meter.read(session, start + output, len(start), drafter.view)
    saved = saved_seconds(target, params, prompts, do_sample)
    costs = meter.costs(_plain_step(target, prompts, do_sample)).cheaper(saved)
    passes = sum(costs.seconds(len(round_.confidence)) for round_ in rounds.rounds)
    top_k = min(layer.top_k for layer in moe_layers(target.layers))
    return Profile(rounds, costs.scaled(spent / passes), meter.unions(), top_k)


def _plain_step(target: Target, prompts: list[list[int]], do_sample: bool) -> float:
    """Return the mean seconds of a plain decoding step on `prompts`, measured the first time."""

    def measured() -> float:
        sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
        steps, seconds = 0, 0.0
        for prompt in prompts[:_PROMPTS]:
            session = open_session(target, [prompt[-_PROMPT_TOKENS:]], _NEW_TOKENS, 0, sampler)
            stats = Stats.empty(1)
            Decoding(session, None, StopRule(), stats).run()
            steps, seconds = steps + stats.total.rounds, seconds + stats.total.seconds["verify"]
        return seconds / steps

    key = (do_sample, len(prompts) > 1, id(resident_of(target.layers)))
    return _plain.cached(target.model, key, measured)
