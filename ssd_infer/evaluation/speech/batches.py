"""Exactness of lossless CTC drafting at batch 1 and in a ragged batch, at several budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_infer.evaluation.batch_exactness import ROWS, Case, Check, Known, batch_deadline, plan, run_checks
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.speech.contest import Contender
from ssd_infer.evaluation.speech.trial import Trial
from ssd_infer.families.speech.result import Timer
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.decode import decode
from ssd_infer.strategies.ctc_draft.recognise import encode

ALONE, TOGETHER = "plain decoding of each utterance alone", "plain decoding of the same batch"
SHORT = (1, 2, 5)
"""Budgets that end inside a draft."""
UNLIMITED = 1 << 20


def exact_in_batches(trial: Trial, contenders: Sequence[Contender]) -> dict[str, LosslessResult]:
    """Compare the drafts among `contenders` with plain decoding; the model's own end mark ends every row."""
    deadline = batch_deadline(trial.budget)
    judged = [item for item in contenders if item.failure is None]
    plainly = Plainly(trial.model, trial.processor, utterances(trial))
    longest = max(SHORT[-1] + 1, *map(len, plainly.tokens(Case(tuple(range(ROWS)), UNLIMITED), None)))
    ends = (int(trial.model.decoder.eos),)
    cases = [Case(case.rows, case.budget, ends) for case in plan([*SHORT, longest + 1], [])]
    checks = {item.name: plainly.check(item, cases) for item in judged}
    return run_checks(checks, plainly.expected, lambda *_: False, deadline)


def utterances(trial: Trial) -> list[Tensor]:
    """Return samples of `ROWS` utterances from the shortest to the longest measured, out of order."""
    waves = [item.samples for items in trial.sets.values() for item in items]
    ordered = sorted(waves, key=len)
    chosen = [ordered[round(place * (len(ordered) - 1) / (ROWS - 1))] for place in range(ROWS)]
    return [chosen[1], chosen[3], chosen[0], chosen[2]]


@dataclass(slots=True)
class Plainly:
    """The utterances, each batch of them encoded once, and what plain decoding makes of them."""

    model: Any
    processor: Any
    waves: list[Tensor]
    _encoded: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def tokens(self, case: Case, method: str | None, params: CTCDraftParams | None = None) -> list[list[int]]:
        """Decode the utterances of a case by any method."""
        if case.rows not in self._encoded:
            waves = [self.waves[row] for row in case.rows]
            self._encoded[case.rows] = encode(self.model, self.processor, waves, Timer())
        found = decode(self.model, self._encoded[case.rows], method, params, case.budget)
        return [row.tokens for row in found.rows]

    def expected(self, case: Case) -> Mapping[str, Sequence[Known]]:
        """Return what plain decoding says of each row; in less than float32 a row encoded alone rounds differently."""
        found = {TOGETHER: [Known(tokens) for tokens in self.tokens(case, None)]}
        if len(case.rows) > 1 and torch.finfo(self.model.dtype).bits >= 32:
            each = [self.tokens(Case((row,), case.budget), None)[0] for row in case.rows]
            found[ALONE] = [Known(tokens) for tokens in each]
        return found

    def check(self, item: Contender, cases: list[Case]) -> Check:
        """Return the check of one draft."""
        return Check(lambda case: self.tokens(case, item.method, item.params), cases)
