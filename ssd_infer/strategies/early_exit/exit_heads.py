"""Which draft head an exit drafts best with: every kind and size beside the full one, at every exit, on one text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ssd_infer.engine.heads.head import FullHead
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.strategies.early_exit.exit_calibration import MAX_GAMMA, ExitPrediction, ExitProfile
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.head_report import head_facts
from ssd_infer.tuning.costs import RoundCosts, context_class
from ssd_infer.tuning.draft_heads import FULL, HeadOption, head_options, make_head
from ssd_infer.tuning.head_ground import cached_ground
from ssd_infer.tuning.head_study import HeadScores, along_text, head_seconds
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.rounds import draft_limits, predict_rounds, steady_speedup
from ssd_infer.tuning.text_states import choices, states_of

SHORTLIST = 6
"""Pairs of exit and head, best by their mean acceptance, whose rounds are followed one by one."""
_PREVIEWED = 2
"""Exits, best with the full head, that low-rank heads are tried at: each needs a preview of its own."""


@dataclass(frozen=True, slots=True)
class ExitHead:
    """One head at one exit: acceptance and confidence `(texts, n)`, coverage, and what its rounds cost."""

    option: HeadOption
    exit_layer: int
    found: HeadScores
    costs: RoundCosts
    do_sample: bool

    def predict(self, gamma: int, threshold: float) -> ExitPrediction:
        """Return the prediction for at most `gamma` drafts, stopping below `threshold`."""
        scores = self.found.scores
        limits = draft_limits(scores.confidence, threshold)
        found = predict_rounds(
            scores.acceptance, limits, self.costs, gamma, threshold, greedy=not self.do_sample
        )
        return ExitPrediction(**asdict(found), exit_layer=self.exit_layer)

    def promise(self, gammas: Iterable[int]) -> float:
        """Return about the speedup to expect, as if every draft were as likely to be right."""
        return steady_speedup(self.costs, self.found.scores.mean, gammas)


_heads: Memo[list[ExitHead]] = Memo()


def best_of_heads(
    target: Target,
    known: ExitProfile,
    params: HeadParams,
    prompts: list[list[int]],
    exits: Sequence[int] | None = None,
    gammas: Sequence[int] | None = None,
    thresholds: Sequence[float] = (),
) -> tuple[ExitPrediction, HeadOption, dict[str, Any]]:
    """Return the fastest prediction, its head, and facts of that; the full head where no part of it is faster.

    A restricted head that was asked for is taken whatever it promises.
    """
    whole = known.best(exits, gammas, thresholds)
    options = head_options(target, params.head, params.head_size)
    if not options:
        return whole, FULL, {}
    lengths = list(gammas or range(1, MAX_GAMMA + 1))
    measured = _measured(target, known, options, prompts, list(exits or known.exits))
    found = sorted(measured, key=lambda one: -one.promise(lengths))
    tried = [
        (one.predict(gamma, threshold), one)
        for one in found[:SHORTLIST]
        for gamma in lengths
        for threshold in dict.fromkeys((0.0, *thresholds))
    ]
    best, one = max(tried, key=lambda pair: pair[0].speedup)
    if params.head == "auto" and best.speedup <= whole.speedup:
        return whole, FULL, {}
    seconds = head_seconds(target, [one.option], prompts, known.do_sample)
    full = known.agreement(one.exit_layer)
    facts = head_facts(one.option, one.found, full, seconds, cached_ground(target, prompts).note)
    return best, one.option, facts


def _measured(
    target: Target,
    known: ExitProfile,
    options: list[HeadOption],
    prompts: list[list[int]],
    exits: list[int],
) -> list[ExitHead]:
    """Return what every option does at every exit, measured the first time."""
    longest = context_class(max(map(len, prompts)))
    key = (known.do_sample, tuple(options), tuple(exits), longest)
    return _heads.cached(target.model, key, lambda: _measure(target, known, options, prompts, exits))


@torch.inference_mode()
def _measure(
    target: Target,
    known: ExitProfile,
    options: list[HeadOption],
    prompts: list[list[int]],
    exits: list[int],
) -> list[ExitHead]:
    sampler = Sampler(SamplingParams(do_sample=known.do_sample), target.device, seed=0)
    seconds = head_seconds(target, options, prompts, known.do_sample)
    previewed = sorted(exits, key=lambda e: -known.predict(e, 2).speedup)[:_PREVIEWED]
    pairs = [(e, o) for o in options for e in exits if o.kind != "lowrank" or e in previewed]
    heads = {pair: make_head(target, pair[1], prompts, pair[0]) for pair in pairs}
    parts: dict[tuple[int, HeadOption], list[HeadScores]] = {pair: [] for pair in pairs}
    for prompt, output in known.texts:
        *states, final = states_of(target, (prompt, output), exits)
        by_exit = dict(zip(exits, states, strict=True))
        reference = choices(sampler, FullHead(target).scores(final).logits).unsqueeze(0)
        text = [prompt + output[:-1]]
        for pair in pairs:
            drafted = by_exit[pair[0]].unsqueeze(0)
            parts[pair].append(along_text(heads[pair], sampler, drafted, reference, text, [len(prompt)]))
    return [
        ExitHead(
            option,
            e,
            HeadScores.joined(parts[e, option]),
            known.costs.exit(e).cheaper(seconds[FULL] - seconds[option]),
            known.do_sample,
        )
        for e, option in pairs
    ]
