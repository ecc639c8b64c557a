"""Choose the exit layer and γ from what this checkpoint does on its own text and what its layers cost here.

Lossless greedy decoding emits the target's own text whatever the draft, so one teacher-forced pass over that text
tells, for every exit at once, which drafts would be accepted: simulated α is exact, not an estimate from one (E, γ).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ssd_infer.drafts.base import Resolved
from ssd_infer.engine.costs import Costs, mean_tau, measure_costs, predicted_speedup
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target

if TYPE_CHECKING:
    from ssd_infer.drafts.early_exit import EarlyExitParams

MAX_GAMMA = 12
_CALIBRATION_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 4, 96, 48


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one (E, γ) should give: simulated acceptance, measured costs, and the speedup they imply."""

    exit_layer: int
    gamma: int
    alpha: float
    tau: float
    c: float
    verify_ratio: float
    speedup: float


@dataclass(slots=True)
class ExitProfile:
    """Acceptance bits (greedy) or overlaps (sampling) `(exits, n)` of each calibration sequence, and costs."""

    acceptance: list[Tensor]
    """Row e-1 belongs to exit e; entries are 1.0/0.0 under greedy, Σ_v min(p, q) under sampling."""
    costs: Costs
    do_sample: bool

    @property
    def exits(self) -> range:
        """Exits the profile knows."""
        return range(1, self.acceptance[0].shape[0] + 1)

    def agreement(self, exit_layer: int) -> float:
        """Return mean acceptance probability of a single drafted token."""
        return float(torch.cat([table[exit_layer - 1] for table in self.acceptance]).mean())

    def predict(self, exit_layer: int, gamma: int) -> Prediction:
        """Return the prediction for `exit_layer` and `gamma`."""
        series = [table[exit_layer - 1] for table in self.acceptance]
        tau = mean_tau(series, gamma) if self.do_sample else _simulate(series, gamma)
        alpha = (tau - 1) / gamma
        c = self.costs.draft(exit_layer) / self.costs.plain
        verify_ratio = self.costs.verify(exit_layer, gamma) / self.costs.plain
        return Prediction(
            exit_layer, gamma, alpha, tau, c, verify_ratio, predicted_speedup(alpha, gamma, c, verify_ratio)
        )

    def best(self, exits: Iterable[int] | None = None, gammas: Iterable[int] | None = None) -> Prediction:
        """Return the fastest prediction among `exits` × `gammas`."""
        gammas = list(gammas or range(1, MAX_GAMMA + 1))
        return max(
            (self.predict(e, g) for e in exits or self.exits for g in gammas), key=lambda found: found.speedup
        )


def _simulate(series: list[Tensor], gamma: int) -> float:
    """Return τ of greedy decoding with γ drafts a round along the given acceptance bits."""
    rounds = accepted = 0
    for bits in series:
        flags = bits.tolist()
        at = 0
        while at < len(flags):
            limit = min(gamma, len(flags) - at)
            run = next((k for k in range(limit) if not flags[at + k]), limit)
            rounds, accepted, at = rounds + 1, accepted + run, at + run + 1
    return 1.0 + accepted / max(rounds, 1)


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
    tables = [
        _compare(target, prompt, output, sampler) for prompt, output in zip(prompts, outputs, strict=True)
    ]
    costs = costs or measure_costs(target, max(map(len, prompts)), do_sample=do_sample)
    return ExitProfile(tables, costs, do_sample)


def _compare(target: Target, prompt: list[int], output: list[int], sampler: Sampler) -> Tensor:
    """Return acceptance `(exits, n-1)` of drafts for every output token after the first, teacher-forced."""
    ids = torch.tensor([prompt + output[:-1]], device=target.device)
    session = open_session(target, [ids[0].tolist()], 1, 0, sampler)
    window = session.window(ids.shape[1])
    hidden, states = target.embed(ids), []
    deepest = max(1, target.num_layers // 2)
    for index in range(target.num_layers):
        hidden = target.run(hidden, window, session.cache, index, index + 1)
        if index < deepest:
            states.append(hidden[0, len(prompt) :])
    final = target.logits(hidden[0, len(prompt) :])
    return torch.stack([_acceptance(final, target.logits(state), sampler) for state in states])


def _acceptance(final: Tensor, early: Tensor, sampler: Sampler) -> Tensor:
    """Return acceptance probability `(n,)` of a draft from `early` `(n, V)` logits against `final` ones."""
    if sampler.greedy:
        return (final.argmax(-1) == early.argmax(-1)).float().cpu()
    return torch.minimum(sampler.probs(final), sampler.probs(early)).sum(-1).cpu()


_profiles: weakref.WeakKeyDictionary[nn.Module, dict[bool, ExitProfile]] = weakref.WeakKeyDictionary()


def remember(target: Target, found: ExitProfile) -> None:
    """Let `auto` use `found` for this model from now on."""
    _profiles.setdefault(target.model, {})[found.do_sample] = found


def recall(target: Target, prompts: list[list[int]], do_sample: bool) -> ExitProfile:
    """Return this model's profile, calibrating on `prompts` the first time."""
    known = _profiles.get(target.model, {}).get(do_sample)
    if known is None:
        known = profile(target, [row[-_PROMPT_TOKENS:] for row in prompts[:_CALIBRATION_PROMPTS]], do_sample)
        remember(target, known)
    return known


def settle_early_exit(
    target: Target, params: EarlyExitParams, prompts: list[list[int]], do_sample: bool
) -> Resolved:
    """Replace `auto` in early-exit parameters; without any `auto` nothing is measured and nothing is refused."""
    if params.exit_layer != "auto" and params.gamma != "auto":
        return Resolved(params)
    known = recall(target, prompts, do_sample)
    exits = None if params.exit_layer == "auto" else [int(params.exit_layer)]
    gammas = None if params.gamma == "auto" else [int(params.gamma)]
    if exits is not None and exits[0] not in known.exits:
        exits = [known.exits[-1]]
    best = known.best(exits, gammas)
    if best.speedup < 1.0:
        chosen = f"exit {best.exit_layer}, γ {best.gamma}"
        note = f"plain decoding: the best predicted speedup is {best.speedup:.2f} ({chosen})"
        return Resolved(None, note, best.speedup)
    exit_layer = best.exit_layer if params.exit_layer == "auto" else params.exit_layer
    settled = replace(params, exit_layer=exit_layer, gamma=best.gamma)
    return Resolved(
        settled, f"auto: exit {exit_layer}, γ {best.gamma}, predicted {best.speedup:.2f}×", best.speedup
    )
