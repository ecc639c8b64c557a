"""Choose the exit layer and γ from what this checkpoint does on its own text and what its layers cost here.

Lossless greedy decoding emits the target's own text whatever the draft, so one teacher-forced pass over that text
tells, for every exit at once, which drafts would be accepted: simulated α is exact, not an estimate from one (E, γ).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.tuning.costs import SHORT, Costs, context_class, measure_costs
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.rounds import Prediction, draft_limits, predict_rounds
from ssd_infer.tuning.text_states import Text, states_of

MAX_GAMMA = 12
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_CALIBRATION_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 8, 96, 64


@dataclass(frozen=True, slots=True)
class ExitPrediction(Prediction):
    """What one (E, γ, θ) should give: simulated acceptance, measured costs, and the speedup they imply."""

    exit_layer: int


@dataclass(slots=True)
class ExitProfile:
    """What every exit would have drafted along calibration texts, `(exits, texts, n)`, and what drafting costs."""

    acceptance: Tensor
    """Row e-1 belongs to exit e; entries are 1.0/0.0 under greedy, Σ_v min(p, q) under sampling."""
    confidence: Tensor
    """Highest probability of the exit's distribution at the same places."""
    costs: Costs
    do_sample: bool
    texts: list[Text] = field(default_factory=list)
    """The texts, as prompts and what the target made of them."""

    @property
    def exits(self) -> range:
        """Exits the profile knows."""
        return range(1, self.acceptance.shape[0] + 1)

    def agreement(self, exit_layer: int) -> float:
        """Return mean acceptance probability of a single drafted token."""
        return float(self.acceptance[exit_layer - 1].mean())

    def predict(self, exit_layer: int, gamma: int, confidence: float = 0.0) -> ExitPrediction:
        """Return the prediction for `exit_layer`, at most `gamma` drafts, and stopping below `confidence`."""
        limits = draft_limits(self.confidence[exit_layer - 1], confidence)
        costs, acceptance = self.costs.exit(exit_layer), self.acceptance[exit_layer - 1]
        found = predict_rounds(acceptance, limits, costs, gamma, confidence, greedy=not self.do_sample)
        return ExitPrediction(**asdict(found), exit_layer=exit_layer)

    def best(
        self,
        exits: Iterable[int] | None = None,
        gammas: Iterable[int] | None = None,
        thresholds: Iterable[float] = (),
    ) -> ExitPrediction:
        """Return the fastest prediction among `exits` × `gammas`, then with a confidence stop at the best exits.

        With a stop longer drafts pay, so γ is searched again beside each of `thresholds`.
        """
        lengths = list(gammas or range(1, MAX_GAMMA + 1))
        plain = [self.predict(e, g) for e in exits or self.exits for g in lengths]
        plain.sort(key=lambda found: -found.speedup)
        shallow = list(dict.fromkeys(found.exit_layer for found in plain))[:2]
        stopped = [self.predict(e, g, t) for e in shallow for g in lengths for t in thresholds]
        return max([plain[0], *stopped], key=lambda found: found.speedup)


@torch.inference_mode()
def profile(
    target: Target,
    prompts: list[list[int]],
    do_sample: bool = False,
    new_tokens: int = _NEW_TOKENS,
    sampling: SamplingParams | None = None,
    costs: Costs | None = None,
) -> ExitProfile:
    """Let the target continue `prompts` plainly, then compare every exit up to half the depth with it."""
    sampling = sampling or SamplingParams(do_sample=do_sample)
    sampler = Sampler(sampling, target.device, seed=0)
    session = open_session(target, prompts, new_tokens, 0, sampler)
    outputs = Decoding(session, None, StopRule(), Stats.empty(len(prompts))).run()
    pairs = [
        _compare(target, prompt, output, sampler) for prompt, output in zip(prompts, outputs, strict=True)
    ]
    acceptance, confidence = (torch.stack(part, dim=1) for part in zip(*pairs, strict=True))
    costs = costs or measure_costs(target, max(map(len, prompts)), do_sample=do_sample)
    return ExitProfile(acceptance, confidence, costs, do_sample, list(zip(prompts, outputs, strict=True)))


def _compare(target: Target, prompt: list[int], output: list[int], sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Return acceptance and confidence `(exits, n-1)` of drafts for every output token after the first."""
    deepest = max(1, target.num_layers // 2)
    *early, final = states_of(target, (prompt, output), range(1, deepest + 1))
    whole = target.logits(final)
    rows = [overlap(whole, target.logits(states), sampler) for states in early]
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def overlap(final: Tensor, early: Tensor, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Return acceptance probability and confidence `(n,)` of drafts from `early` `(n, V)` logits."""
    if sampler.greedy:
        top = early.float().softmax(-1).amax(-1)
        return (final.argmax(-1) == early.argmax(-1)).float().cpu(), top.cpu()
    q = sampler.probs(early)
    return torch.minimum(sampler.probs(final), q).sum(-1).cpu(), q.amax(-1).cpu()


_profiles: Memo[ExitProfile] = Memo()
_costs: Memo[Costs] = Memo()


def remember(target: Target, found: ExitProfile) -> None:
    """Let `auto` use `found` for this model from now on, as long as it is and runs as it does now."""
    _profiles.put(target.model, found.do_sample, found)


def cached_profile(target: Target, prompts: list[list[int]], do_sample: bool) -> ExitProfile:
    """Return this model's profile, calibrating on `prompts` the first time, with what passes cost after such prompts.

    Acceptance is looked at after the ends of prompts, which is cheaper; costs grow with the whole of them.
    """
    texts = [row[-_PROMPT_TOKENS:] for row in prompts[:_CALIBRATION_PROMPTS]]
    known = _profiles.cached(target.model, do_sample, lambda: profile(target, texts, do_sample))
    longest = max(map(len, prompts))
    if longest <= SHORT:
        return known
    key = context_class(longest), do_sample
    costs = _costs.cached(target.model, key, lambda: measure_costs(target, longest, do_sample))
    return replace(known, costs=costs)
