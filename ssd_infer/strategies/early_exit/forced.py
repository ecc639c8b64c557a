"""Acceptance of early exit from many prompts, and the speedup that follows: what timed decodings are checked against.

Lossless decoding emits the target's own text whatever the draft, so text of the target, decoded plainly in large
batches, says after one teacher-forced pass which drafts would have been accepted: exactly when greedy, in expectation
when sampling. That is far cheaper than timing a prompt, so many more prompts are affordable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.loop import decode
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.request import read_stop
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.target import Target
from ssd_infer.strategies.early_exit import EARLY_EXIT
from ssd_infer.strategies.early_exit.exit_calibration import overlap
from ssd_infer.strategies.study import Sampling, StudyContext
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping
from ssd_infer.tuning.costs import Costs, RoundCosts, measure_costs
from ssd_infer.tuning.rounds import draft_limits, expected_rounds, greedy_rounds
from ssd_infer.tuning.text_states import states_of

BATCH, MOST_PROMPTS, RESAMPLES = 16, 256, 2000
Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """How an early exit drafts: after `exit_layer` layers, at most `gamma` tokens, until one below `confidence`."""

    exit_layer: int
    gamma: int
    confidence: float


@dataclass(slots=True)
class Forced:
    """Rounds that `shape` would have taken on each text, pooled: emitted = accepted + 1 a round."""

    shape: Shape
    rounds: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)
    """Of each text: rounds, and tokens accepted and drafted in all of them."""

    def add(self, acceptance: Tensor, confidence: Tensor, do_sample: bool) -> None:
        """Count one text: acceptance and confidence `(n,)` of a draft at each of its tokens after the first."""
        rounds = expected_rounds if do_sample else greedy_rounds
        limits = draft_limits(confidence.unsqueeze(0), self.shape.confidence)
        accepted, drafted = rounds(acceptance.unsqueeze(0), limits, self.shape.gamma)
        count = acceptance.shape[0] / (1 + accepted)
        self.rounds.append(count)
        self.accepted.append(count * accepted)
        self.drafted.append(count * drafted)

    def facts(self, costs: Costs, seed: int = 0) -> dict[str, Any]:
        """Return pooled α and τ, their predicted speedup at `costs`, and 95 % over prompts of τ and the speedup."""
        table = torch.tensor([self.rounds, self.accepted, self.drafted], dtype=torch.float64).T
        generator = torch.Generator().manual_seed(seed)
        picks = torch.randint(len(table), (RESAMPLES, len(table)), generator=generator)
        drawn = table[picks].sum(dim=1)
        exit_costs = costs.exit(self.shape.exit_layer)
        speeds = [_speedup(row, exit_costs) for row in drawn.tolist()]
        total = table.sum(dim=0).tolist()
        return {
            "prompts": len(table),
            "tokens": round(total[0] + total[1]),
            "alpha": total[1] / total[2] if total[2] else None,
            "tau": 1 + total[1] / total[0],
            "tau_ci95": _bounds(1 + drawn[:, 1] / drawn[:, 0]),
            "draft_ratio_c": exit_costs.c,
            "verify_ratio": exit_costs.v(total[2] / total[0]),
            "predicted_speedup": _speedup(total, exit_costs),
            "predicted_ci95": _bounds(torch.tensor(speeds, dtype=torch.float64)),
        }


def _speedup(sums: Sequence[float], costs: RoundCosts) -> float:
    rounds, accepted, drafted = sums
    return costs.speedup(1 + accepted / rounds, drafted / rounds)


def _bounds(values: Tensor) -> list[float]:
    return torch.quantile(values, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()


def shape_of(params: Mapping[str, Any] | None) -> Shape | None:
    """Return how an early exit with these parameters drafts; None where it decodes plainly."""
    if params is None:
        return None
    return Shape(int(params["exit_layer"]), int(params["gamma"]), float(params["confidence"]))


def study_forced(context: StudyContext) -> dict[str, Any]:
    """Return what many prompts predict of the row; nothing, and a note, where the time did not suffice."""
    target, shape = context.target, shape_of(context.params)
    if isinstance(target, str) or shape is None:
        return {}
    name = EARLY_EXIT.name + context.sampling.suffix
    context.say(f"predicting {name} from many prompts")
    settings = context.settings
    facts = forced_facts(
        target,
        context.prompts,
        context.new_tokens,
        context.sampling,
        shape,
        settings.seed,
        context.deadline,
        settings.batch_size,
    )
    if facts is None:
        context.notes.append(f"the time limit left out the prediction of {name} from many prompts")
    return facts or {}


def forced_acceptance(
    target: Target,
    prompts: Prompts,
    new_tokens: int,
    sampling: Sampling,
    shape: Shape,
    seed: int,
    deadline: Deadline,
) -> Forced:
    """Let the target continue `prompts` plainly, a batch at a time until `deadline`, and count what would be accepted.

    Text ends where the model ends it. A batch that the deadline cuts off counts as far as it was compared.
    """
    found = Forced(shape)
    sampler = Sampler(sampling.params, target.device, seed)
    rows = prompts[:MOST_PROMPTS]
    try:
        with stopping(target.model, deadline):
            for start in range(0, len(rows), BATCH):
                batch = rows[start : start + BATCH]
                texts = _continued(target, batch, new_tokens, sampling, seed + start)
                for prompt, text in zip(batch, texts, strict=True):
                    if len(text) > 1:
                        found.add(*_compare(target, prompt, text, sampler, shape), not sampling.greedy)
    except OutOfTime:
        pass
    return found


def _continued(
    target: Target, prompts: Prompts, new_tokens: int, sampling: Sampling, seed: int
) -> list[list[int]]:
    """Let the target go on plainly, until the model itself ends a text."""
    sampler = Sampler(sampling.params, target.device, seed)
    with evaluating(target.model):
        stop = read_stop(target.model, None, None, [])
        return decode(target, prompts, None, None, new_tokens, sampler, stop)[0]


@torch.inference_mode()
def _compare(
    target: Target, prompt: list[int], text: list[int], sampler: Sampler, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Return acceptance and confidence `(n-1,)` of the exit's draft for every token of `text` after the first."""
    early, final = states_of(target, (prompt, text), (shape.exit_layer,))
    return overlap(target.logits(final), target.logits(early), sampler)


def forced_facts(
    target: Target,
    prompts: Prompts,
    new_tokens: int,
    sampling: Sampling,
    shape: Shape,
    seed: int,
    deadline: Deadline,
    batch: int = 1,
) -> dict[str, Any] | None:
    """Return what many prompts, and repeated passes over `batch` rows, predict.

    None where the time did not suffice for two prompts and the passes.
    """
    found = forced_acceptance(target, prompts, new_tokens, sampling, shape, seed, deadline.part(0.8))
    if len(found.rounds) < 2:
        return None
    context = sum(map(len, prompts)) // len(prompts) + new_tokens // 2
    try:
        with stopping(target.model, deadline):
            costs = measure_costs(target, context, not sampling.greedy, batch=batch)
    except OutOfTime:
        return None
    return found.facts(costs, seed)
