"""Settle `auto` of `reduced_experts`: draft on the prompts once a model, then choose by what it would have cost."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ssd_infer.drafts.base import Resolved
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.experts.costs import MoeCosts, measure_costs
from ssd_infer.experts.layout import moe_layers
from ssd_infer.experts.offload import resident_of
from ssd_infer.experts.record import NOTHING, Rounds, Trust, calibrate_trust
from ssd_infer.search.race import measured_speedup

if TYPE_CHECKING:
    from ssd_infer.drafts.reduced_experts import ReducedExpertsParams

MAX_GAMMA = 16
STOPS = (0.0, 0.3, 0.5, 0.7)
_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 6, 64, 64


@dataclass(frozen=True, slots=True)
class Profile:
    """What one k_draft did on the calibration prompts, and what it costs."""

    rounds: Rounds
    costs: MoeCosts

    def options(self, gammas: Iterable[int], stops: Iterable[float]) -> list[tuple[float, int, float]]:
        """Return (predicted speedup, γ, stop) of every combination."""
        return [
            (self.costs.speedup(*self.rounds.outcome(gamma, stop)), gamma, stop)
            for gamma in gammas
            for stop in stops
        ]

    def adaptive(self, trust: Trust, gamma: int, window: int) -> float:
        """Return the predicted speedup of mode adaptive: what is neither trusted nor right ends a window.

        Drafts are taken as independent of each other. A window also ends at γ drafts that have to be compared.
        """
        judged = self.rounds.judged()
        count = max(1, len(judged))
        trusted = sum(sure >= trust.threshold for sure, _ in judged) / count
        wrong = sum(sure < trust.threshold and not right for sure, right in judged) / count
        drafted = min(float(window), gamma / max(1e-9, 1 - trusted))
        passed = 1 - wrong
        emitted = 1 + sum(passed**place for place in range(1, int(drafted) + 1))
        return self.costs.speedup(emitted, drafted)


_profiles: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Profile]] = (
    weakref.WeakKeyDictionary()
)


def settle_reduced(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto`. With k_draft, γ and, in mode adaptive, τ given nothing is measured and nothing is refused."""
    offloaded = resident_of(target.layers) is not None
    held = offloaded if params.at_hand == "auto" else bool(params.at_hand)
    params = replace(params, at_hand=held and offloaded)
    known = params.mode == "lossless" or params.tau_accept != "auto"
    if params.k_draft != "auto" and params.gamma != "auto" and known:
        stop = 0.0 if params.confidence == "auto" else params.confidence
        return Resolved(replace(params, confidence=stop, prefetch=bool(params.prefetch)))
    settle = _settle_adaptive if params.mode == "adaptive" else _settle_lossless
    return _raced(target, settle(target, params, prompts, do_sample), prompts, do_sample)


def _settle_lossless(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Take the fastest of every k_draft, γ, stop and way to read by predicted speed; plain decoding when none gains."""
    gammas = range(1, MAX_GAMMA + 1) if params.gamma == "auto" else [int(params.gamma)]
    stops = STOPS if params.confidence == "auto" else (float(params.confidence),)
    found = [
        (*option, entrant, profile)
        for entrant in _entrants(target, params)
        for profile in [recall(target, entrant, prompts, do_sample)]
        for option in profile.options(gammas, stops)
    ]
    speedup, gamma, stop, entrant, profile = max(found, key=lambda option: option[0])
    details = f"{_named(entrant)}, γ {gamma}, stop below {stop:g}, {_unions(profile.costs)}"
    if speedup < 1.0:
        note = f"plain decoding: the best predicted speedup is {speedup:.2f} ({details})"
        return Resolved(None, note, speedup)
    settled = replace(entrant, gamma=gamma, confidence=stop)
    return Resolved(settled, f"auto: {details}, predicted {speedup:.2f}×", speedup)


def _settle_adaptive(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Calibrate τ for every k_draft and take the fastest; plain decoding when nothing is predicted to gain."""
    gammas = range(1, MAX_GAMMA + 1) if params.gamma == "auto" else [int(params.gamma)]
    stop = 0.0 if params.confidence == "auto" else float(params.confidence)
    found = []
    for entrant in _entrants(target, params):
        profile = recall(target, entrant, prompts, do_sample)
        trust = trust_of(profile.rounds, params)
        options = [(profile.adaptive(trust, gamma, params.max_window), gamma) for gamma in gammas]
        found.append((*max(options), entrant, trust, profile))
    speedup, gamma, entrant, trust, profile = max(found, key=lambda option: option[0])
    bound = "none trusted" if trust.bound is None else f"≤ {trust.bound:.1%} of {trust.count} wrong"
    details = (
        f"{_named(entrant)}, γ {gamma}, τ {trust.threshold:.3f} ({bound}, {trust.coverage:.0%} of drafts)"
    )
    if speedup < 1.0:
        note = f"plain decoding: the best predicted speedup is {speedup:.2f} ({details})"
        return Resolved(None, note, speedup)
    settled = replace(entrant, gamma=gamma, confidence=stop, tau_accept=trust.threshold)
    note = f"auto: {details}, {_unions(profile.costs)}, predicted {speedup:.2f}×"
    return Resolved(settled, note, speedup)


def trust_of(rounds: Rounds, params: ReducedExpertsParams) -> Trust:
    """Return the given threshold with its record, or the calibrated one."""
    if isinstance(params.tau_accept, str):
        return calibrate_trust(rounds.judged(), params.eps)
    judged = rounds.judged()
    covered = [right for sure, right in judged if sure >= params.tau_accept]
    if not covered:
        return replace(NOTHING, threshold=params.tau_accept)
    return Trust(params.tau_accept, None, len(covered) / len(judged), len(covered))


def _raced(target: Target, found: Resolved, prompts: list[list[int]], do_sample: bool) -> Resolved:
    """Return `found` unless it loses a race against plain decoding on the prompts.

    Costs are timed pass by pass; what the draft's reads push out of memory only shows when both decode.
    """
    from ssd_infer.drafts.reduced_experts import ReducedExperts

    if found.params is None:
        return found
    measured = measured_speedup(target, ReducedExperts, found.params, prompts, do_sample)
    note = f"{found.note}, measured {measured:.2f}× on the calibration prompts"
    if measured < 1.0:
        return Resolved(None, f"plain decoding: {note.removeprefix('auto: ')}", measured)
    return replace(found, note=note)


def _entrants(target: Target, params: ReducedExpertsParams) -> list[ReducedExpertsParams]:
    """Return what competes: drafts of one, half and, where that costs no reading, all experts; reading ahead or not."""
    counts = [params.k_draft]
    if params.k_draft == "auto":
        top_k = min(layer.top_k for layer in moe_layers(target.layers))
        counts = sorted({1, -(-top_k // 2)} | ({top_k} if params.at_hand else set()))
    ways = [bool(params.prefetch)]
    if params.prefetch == "auto":
        ways = [True, False] if resident_of(target.layers) is not None else [False]
    return [replace(params, k_draft=count, prefetch=way) for count in counts for way in ways]


def _named(entrant: ReducedExpertsParams) -> str:
    return f"top-{entrant.k_draft}" + (", reading ahead" if entrant.prefetch else "")


def recall(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Profile:
    """Return this model's profile of one k_draft, made on `prompts` the first time."""
    resident = resident_of(target.layers)
    key = (
        params.k_draft,
        params.renorm,
        params.at_hand,
        params.prefetch,
        do_sample,
        len(prompts) > 1,
        id(resident),
    )
    known = _profiles.setdefault(target.model, {})
    if key not in known:
        known[key] = make_profile(target, params, prompts, do_sample)
    return known[key]


@torch.inference_mode()
def make_profile(
    target: Target, params: ReducedExpertsParams, prompts: list[list[int]], do_sample: bool
) -> Profile:
    """Draft on the prompts at full length, alone, then time passes over the longest of the texts that came out."""
    from ssd_infer.drafts.reduced_experts import ReducedExperts

    sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
    drafting = replace(params, mode="lossless", gamma=MAX_GAMMA, confidence=0.0)
    rounds, text, first = Rounds(), [0], 1
    for prompt in prompts[:_PROMPTS]:
        start = prompt[-_PROMPT_TOKENS:]
        session = open_session(target, [start], _NEW_TOKENS, MAX_GAMMA, sampler)
        drafter = ReducedExperts(session, drafting)
        drafter.rounds = rounds
        output = Decoding(session, drafter, StopRule(), Stats.empty(1)).run()[0]
        if len(start) + len(output) > len(text):
            text, first = start + output, len(start)
    ids = torch.tensor([text], device=target.device)
    session = open_session(target, [text], 1, MAX_GAMMA, sampler)
    target.run(target.embed(ids[:, :first]), session.window(first), session.cache)
    session.lengths = [first]
    view = ReducedExperts(session, drafting).view
    return Profile(rounds, measure_costs(session, ids, first, view))


def _unions(costs: MoeCosts) -> str:
    at = [
        f"U({width}) {size / costs.top_k:.1f}k" for width, size in zip(costs.widths, costs.union, strict=True)
    ]
    return ", ".join(at[1:4:2]) or at[0]
