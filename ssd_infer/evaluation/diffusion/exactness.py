"""Exactness of diffusion drafts at batch 1 and in a ragged batch, at several budgets, end marks heeded and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssd_infer.evaluation.batch_exactness import (
    LONGEST_OUTPUT,
    Case,
    Check,
    Known,
    plan,
    ragged_prompts,
    run_checks,
)
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, Prompts
from ssd_infer.evaluation.diffusion.diffusion_contenders import decoding
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.transformers_side import eos_ids
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline

SEED = 12289
ALONE, TOGETHER = "stepwise decoding of each row alone", "stepwise decoding of the same batch"


def exact_in_batches(
    bench: EvalContext,
    strategies: Sequence[Contender],
    sampling: Sampling,
    sampler: SamplerSettings,
    deadline: Deadline,
) -> dict[str, LosslessResult]:
    """Compare every draft with stepwise decoding: of the same batch, and when greedy of each row alone.

    Sampled rows are compared under the same keyed noise, which a row draws by its place in the batch; in less than
    float32 a row alone rounds differently, and is no reference.
    """
    judged = [item for item in strategies if item.failure is None and item.claimed]
    if not judged or deadline.passed:
        late = LosslessResult("not_run", "ragged batch and several budgets: not run for lack of time")
        return {item.name: late for item in judged}
    prompts = ragged_prompts([prompt for unit in bench.units for prompt in unit.prompts])
    stepwise = Stepwise(bench.model, prompts, sampling, sampler)
    budgets = _budgets(bench, sampler)
    marks = [stepwise.mark(budgets[-1]), tuple(eos_ids(bench.model))]
    checks = {_key(item): stepwise.check(item, plan(budgets, marks)) for item in judged}
    found = run_checks(checks, stepwise.expected, lambda *_: False, deadline)
    return {item.name: found[_key(item)] for item in judged}


@dataclass(slots=True)
class Stepwise:
    """The ragged prompts, and what stepwise decoding makes of them: unlike greedy text, another for every budget."""

    model: Any
    prompts: Prompts
    sampling: Sampling
    sampler: SamplerSettings
    _known: dict[Case, list[list[int]]] = field(default_factory=dict)

    def decode(self, case: Case, params: dict[str, Any] | None) -> list[list[int]]:
        """Decode the rows of a case with a draft, or stepwise for None."""
        rows = [self.prompts[row] for row in case.rows]
        decode = decoding(self.model, params, self.sampling, self.sampler, eos=list(case.ends))
        return decode(rows, case.budget, SEED)[0]

    def mark(self, longest: int) -> tuple[int, ...]:
        """Return an end mark that really occurs: what the first row says halfway."""
        (said,) = self._remembered(Case((0,), longest))
        return (said[len(said) // 2],)

    def expected(self, case: Case) -> Mapping[str, Sequence[Known]]:
        """Return what stepwise decoding says of each row."""
        found = {TOGETHER: [Known(tokens) for tokens in self._remembered(case)]}
        strict = torch.finfo(next(self.model.parameters()).dtype).bits >= 32
        if self.sampling.greedy and strict and len(case.rows) > 1:
            each = [self._remembered(Case((row,), case.budget, case.ends))[0] for row in case.rows]
            found[ALONE] = [Known(tokens) for tokens in each]
        return found

    def check(self, item: Contender, cases: list[Case]) -> Check:
        """Return the check of one draft."""
        params = None if item.plain else item.params
        return Check(lambda case: self.decode(case, params), cases)

    def _remembered(self, case: Case) -> list[list[int]]:
        if case not in self._known:
            self._known[case] = self.decode(case, None)
        return self._known[case]


def _budgets(bench: EvalContext, sampler: SamplerSettings) -> list[int]:
    """Return budgets inside a block, at its end and past it, the longest last; those that the sampler's steps fit."""
    most = bench.settings.max_new_tokens
    denoiser = Denoiser.of(bench.model)
    trained = int(denoiser.config.block_size or 0)
    block = trained if denoiser.block_causal else sampler.block_length or trained
    longest = min(most, max(LONGEST_OUTPUT, block))
    width = block or longest // 2 or 1
    wanted = [min(budget, longest) for budget in (1, width + 1, 2 * width + 3, longest)]
    if block and not denoiser.block_causal:
        wanted = [-(-budget // block) * block for budget in wanted]
    steps = sampler.steps if sampler.rule == "schedule" else None
    fitting = [budget for budget in wanted if steps is None or not steps % -(-budget // (block or budget))]
    return sorted(set(fitting)) or [most]


def _key(item: Contender) -> str:
    return "stepwise" if item.plain else item.name
