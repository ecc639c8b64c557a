"""Exactness of drafts that promise the text of plain decoding, at batch 1 and in a ragged batch, at several budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_infer.evaluation.batch_exactness import ROWS, Case, Check, Known, batch_deadline, plan, run_checks
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.speech.trial import Trial, strategy
from ssd_infer.families.speech.encoding import encode
from ssd_infer.families.speech.result import Timer
from ssd_infer.strategies.speech_strategy import SpeechDraft

ALONE, TOGETHER = "plain decoding of each utterance alone", "plain decoding of the same batch"
SHORT = (1, 2, 5)
"""Budgets that end inside a draft."""
UNLIMITED = 1 << 20


def exact_in_batches(trial: Trial, drafts: Sequence[SpeechDraft]) -> dict[str, LosslessResult]:
    """Compare `drafts` with plain decoding; the model's own end mark ends every row. Return results by name."""
    deadline = batch_deadline(trial.budget)
    plainly = Plainly(trial.model, trial.processor, utterances(trial))
    longest = max(SHORT[-1] + 1, *map(len, plainly.tokens(Case(tuple(range(ROWS)), UNLIMITED), None)))
    ends = (int(trial.model.decoder.eos),)
    cases = [Case(case.rows, case.budget, ends) for case in plan([*SHORT, longest + 1], [])]
    checks = {item.name: plainly.check(item, cases) for item in drafts}
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

    def tokens(self, case: Case, draft: SpeechDraft | None) -> list[list[int]]:
        """Decode the utterances of a case with a draft, or plainly for None."""
        if case.rows not in self._encoded:
            waves = [self.waves[row] for row in case.rows]
            self._encoded[case.rows] = encode(self.model, self.processor, waves, Timer())
        return strategy().decode(self.model, self._encoded[case.rows], draft, case.budget)

    def expected(self, case: Case) -> Mapping[str, Sequence[Known]]:
        """Return what plain decoding says of each row; in less than float32 a row encoded alone rounds differently."""
        found = {TOGETHER: [Known(tokens) for tokens in self.tokens(case, None)]}
        if len(case.rows) > 1 and torch.finfo(self.model.dtype).bits >= 32:
            each = [self.tokens(Case((row,), case.budget), None)[0] for row in case.rows]
            found[ALONE] = [Known(tokens) for tokens in each]
        return found

    def check(self, draft: SpeechDraft, cases: list[Case]) -> Check:
        """Return the check of one draft."""
        return Check(lambda case: self.tokens(case, draft), cases)
