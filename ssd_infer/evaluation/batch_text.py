"""Exactness at batch 1 and in a ragged batch for models that decode text one token after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssd_infer.evaluation.batch_exactness import (
    LONGEST_OUTPUT,
    Case,
    Check,
    Excuse,
    Known,
    plan,
    ragged_prompts,
    run_checks,
)
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, Prompts, one_line, ours
from ssd_infer.evaluation.losslessness import LosslessResult, Regret
from ssd_infer.evaluation.stream import Output, judge_stream
from ssd_infer.evaluation.transformers_side import cut_at_eos, eos_ids
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline

PLAIN, THEIRS = "ssd_plain", "transformers_generate"
SEEDS = 3
"""Sampled decodings of the ragged batch."""
GREEDY = Sampling()


def greedy_in_batches(
    model: Any,
    contenders: Sequence[Contender],
    prompts: Prompts,
    max_new_tokens: int,
    deadline: Deadline,
) -> dict[str, LosslessResult]:
    """Compare every draft that promises plain output with rows decoded alone, plainly and by transformers.

    float32 and wider must be equal token by token; in lower precision the logit-regret gate excuses rounding.
    """
    judged = [item for item in contenders if _drafts(item) and item.claimed and item.failure is None]
    if not judged or deadline.passed:
        late = LosslessResult("not_run", "ragged batch and several budgets: not run for lack of time")
        return {item.name: late for item in judged}
    theirs = next((item for item in contenders if item.name == THEIRS and item.failure is None), None)
    longest = min(max_new_tokens, LONGEST_OUTPUT)
    alone = Alone.of(model, ragged_rows(model, prompts, longest), longest, theirs, deadline)
    checks = {_key(item): _check(model, item, alone) for item in judged}
    found = run_checks(checks, alone.expected, alone.excuse(model), deadline)
    return {item.name: _with_note(found[_key(item)], alone.note) for item in judged}


def ragged_rows(model: Any, prompts: Prompts, longest: int) -> Prompts:
    """Return prompts of different lengths, every other one continued by the model's own text.

    In its own text a model is at home: drafts are long and right there and short and wrong in the rows beside, which
    drives the rows of the batch apart.
    """
    rows = ragged_prompts(prompts)
    room = min(longest, 3 * max(map(len, rows)) // 8)
    decode = ours(model, None, {}, GREEDY, eos=[])
    return [
        row if place % 2 or not room else row + decode([row], room, 0)[0][0] for place, row in enumerate(rows)
    ]


@dataclass(slots=True)
class Alone:
    """The ragged prompts, each decoded by itself."""

    prompts: Prompts
    longest: int
    own: tuple[int, ...]
    """The model's end marks."""
    plain: Prompts
    """Our plain decoding, no end mark heeded."""
    theirs: Prompts = field(default_factory=list)
    """transformers' `generate`, which ends at the model's own marks; empty where it was not run."""
    note: str = ""

    @classmethod
    def of(
        cls, model: Any, prompts: Prompts, longest: int, theirs: Contender | None, deadline: Deadline
    ) -> Alone:
        """Decode every prompt alone."""
        decode = ours(model, None, {}, GREEDY, eos=[])
        made = cls(prompts, longest, tuple(eos_ids(model)), [])
        made.plain = [decode([prompt], longest, 0)[0][0] for prompt in prompts]
        if theirs is None:
            made.note = "transformers' generate does not run on this checkpoint"
        elif deadline.passed:
            made.note = "not compared with transformers' generate for lack of time"
        else:
            made._ask(theirs)
        return made

    def _ask(self, theirs: Contender) -> None:
        try:
            self.theirs = [theirs.decode([prompt], self.longest, 0)[0][0] for prompt in self.prompts]
        except Exception as error:  # noqa: BLE001  a reference that fails is said, and costs no row
            self.note = f"transformers' generate failed on these prompts ({one_line(error)})"

    def mark(self) -> tuple[int, ...]:
        """Return an end mark that really occurs: what the first row says halfway."""
        return (self.plain[0][len(self.plain[0]) // 2],)

    def expected(self, case: Case) -> Mapping[str, Sequence[Known]]:
        """Return what plain decoding, and transformers where it went as far, say of each row."""
        ends = list(case.ends)
        found = {PLAIN: [Known(cut_at_eos(self.plain[row][: case.budget], ends)) for row in case.rows]}
        if self.theirs:
            found[THEIRS] = [self._theirs(row, case) for row in case.rows]
        return found

    def _theirs(self, row: int, case: Case) -> Known:
        """Return their row; one that ended at a mark this case does not heed is known up to there only."""
        said = self.theirs[row]
        tokens = cut_at_eos(said[: case.budget], list(case.ends))
        stopped = len(said) < self.longest and len(tokens) == len(said)
        return Known(tokens, whole=not stopped or tokens[-1] in case.ends)

    def excuse(self, model: Any) -> Excuse:
        """Return the gate of lower precisions; wider ones excuse nothing."""
        strict = torch.finfo(next(model.parameters()).dtype).bits >= 32
        prompts = {(0, row): prompt for row, prompt in enumerate(self.prompts)}

        def excused(case: Case, row: int, output: list[int]) -> bool:
            if strict:
                return False
            return Regret(model, prompts, case.budget, frozenset(case.ends)).accepts((0, 0, row), output)[0]

        return excused


def sampled_in_batches(
    bench: EvalContext, judged: Sequence[Contender], sampling: Sampling, prompts: Prompts, deadline: Deadline
) -> dict[str, LosslessResult]:
    """Test the law of draws in a ragged batch, and of its rows one by one too where the timed runs were batches."""
    late = LosslessResult("not_run", "ragged batch: not run for lack of time")
    budget = min(bench.settings.max_new_tokens, LONGEST_OUTPUT)
    rows = ragged_rows(bench.model, prompts, budget) if judged and not deadline.passed else []
    groups = [rows] if bench.settings.batch_size == 1 else [rows, *([row] for row in rows)]
    found = {}
    for item in judged:
        if deadline.passed:
            found[item.name] = late
            continue
        try:
            found[item.name] = law_of_groups(bench.model, item, sampling, groups, budget, bench.settings.seed)
        except Exception as error:  # noqa: BLE001  the row fails, the report goes on
            reason = f"ragged batch: the test itself failed ({one_line(error)})"
            found[item.name] = LosslessResult("fail", reason)
    return found


def law_of_groups(
    model: Any, item: Contender, sampling: Sampling, groups: Sequence[Prompts], budget: int, seed: int
) -> LosslessResult:
    """Draw `budget` tokens in each group of rows, a few times, and test each token's place in the target's law."""
    decode = ours(model, item.draft, item.params, sampling, eos=[])
    outputs, drafted = [], 0
    for turn in range(SEEDS):
        for place, group in enumerate(groups):
            tokens, stats = decode(group, budget, seed + 104729 * (turn + 1) + place)
            drafted += stats.total.drafted if stats is not None else 0
            outputs += [Output(prompt, out) for prompt, out in zip(group, tokens, strict=True)]
    found = judge_stream(model, outputs, sampling, drafted, seed)
    where = " and ".join(
        f"ragged batch of {size}" if size > 1 else "batch 1" for size in dict.fromkeys(map(len, groups))
    )
    places = found.extra.get("places")
    extra = {} if places is None else {"batches": {"where": where, "budget": budget, **places}}
    return LosslessResult(found.verdict, f"{where}: {found.detail.removeprefix('sampling: ')}", extra)


def _key(item: Contender) -> str:
    """Return what a check is known by: rows that decode plainly share one."""
    return PLAIN if item.plain else item.name


def _drafts(item: Contender) -> bool:
    return item.kind == "strategy" or item.draft is not None


def _check(model: Any, item: Contender, alone: Alone) -> Check:
    draft = None if item.plain else item.draft

    def decode(case: Case) -> Prompts:
        chosen = [alone.prompts[row] for row in case.rows]
        return ours(model, draft, item.params, GREEDY, eos=list(case.ends))(chosen, case.budget, 0)[0]

    gamma = _gamma(item)
    budgets = [min(budget, alone.longest) for budget in (1, gamma + 1, 2 * gamma + 3, alone.longest)]
    more = [] if item.plain else range(1, alone.longest + 1)
    return Check(decode, plan(budgets, [alone.mark(), alone.own], more))


def _gamma(item: Contender) -> int:
    """Return how many tokens a round drafts: γ where there is one, otherwise the longest proposal."""
    gamma = item.params.get("gamma")
    if isinstance(gamma, int):
        return gamma
    if item.plain or item.draft is None:
        return 1
    strategy = drafts.get(item.draft)
    return max(1, strategy.max_draft(strategy.parse(item.params, None)))


def _with_note(result: LosslessResult, note: str) -> LosslessResult:
    detail = f"{result.detail}; {note}" if note else result.detail
    return LosslessResult(result.verdict, detail, result.extra)
