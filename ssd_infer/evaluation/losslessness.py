"""Test in the run that a strategy changed nothing: equal tokens under greedy decoding.

float32 and wider must match exactly. Lower precisions round differently for different pass widths, so there a token
may differ from the reference only where the target itself can hardly tell the two apart (logit regret).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from ssd_infer.engine.devices import input_device

Verdict = Literal["pass", "fail", "not_run"]
Key = tuple[int, int, int]
Outputs = Mapping[Key, list[int]]
"""(repeat, unit, row) → new tokens."""


@dataclass(frozen=True, slots=True)
class LosslessResult:
    """A verdict and the sentence that supports it."""

    verdict: Verdict
    detail: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Regret:
    """Judge tokens by how far the target scores them below its own choice, teacher-forced along the output."""

    model: nn.Module
    prompts: Mapping[tuple[int, int], list[int]]
    """(unit, row) → prompt."""
    max_new_tokens: int
    eos: frozenset[int]

    def accepts(self, key: Key, output: list[int]) -> tuple[bool, float]:
        """Return whether `output` is greedy up to rounding and complete, and its largest regret in logits."""
        if not output:
            return False, 0.0
        complete = len(output) == self.max_new_tokens or (bool(output) and output[-1] in self.eos)
        worst, tolerance = regret(self.model, self.prompts[key[1:]], output)
        return complete and worst <= tolerance, worst


@torch.inference_mode()
def regret(model: Any, prompt: list[int], output: list[int]) -> tuple[float, float]:
    """Return the largest logit regret of `output` after `prompt`, and the tolerance of the logits' precision.

    The tolerance is 8 rounding steps of the dtype at the size of the largest logit.
    """
    ids = torch.tensor([prompt + output], device=input_device(model))
    raw = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    logits = raw.float()
    chosen = logits.gather(1, torch.tensor(output, device=logits.device).unsqueeze(1)).squeeze(1)
    worst = float((logits.amax(dim=1) - chosen).max())
    return worst, 8 * torch.finfo(model.dtype).eps * float(logits.abs().max())


def first_divergence(ours: list[int], theirs: list[int]) -> int | None:
    """Return the index of the first difference, a missing token included; None when equal in content and length."""
    for index in range(max(len(ours), len(theirs))):
        if index >= len(ours) or index >= len(theirs) or ours[index] != theirs[index]:
            return index
    return None


def judge_greedy(
    outputs: Outputs, references: Mapping[str, Outputs], gate: Regret | None = None, strict: bool = True
) -> LosslessResult:
    """Compare `outputs` with every reference decoding (by name); any difference fails, a strict prefix too.

    `gate` excuses differences that are rounding unless `strict` (float32 and wider), where it only says how large
    they are. Not run when there is nothing to compare.
    """
    references = {name: reference for name, reference in references.items() if reference}
    if not outputs or not references:
        reason = "no reference decoding to compare with" if outputs else "nothing was decoded"
        return LosslessResult("not_run", reason)
    tally = Tally(total=len(outputs))
    for key in sorted(outputs):
        tally.add(_worst(outputs[key], key, references), gate, key, outputs[key], strict)
    tally.missing = len({key for reference in references.values() for key in reference} - set(outputs))
    return tally.result(sorted(references))


@dataclass(slots=True)
class Tally:
    """Counts of one greedy comparison."""

    total: int
    equal: int = 0
    excused: int = 0
    broken: int = 0
    missing: int = 0
    first: int | None = None
    """Earliest divergence of a broken output."""
    worst: float | None = None
    """Largest logit regret of a broken output."""

    def add(
        self, divergence: int | None, gate: Regret | None, key: Key, output: list[int], strict: bool
    ) -> None:
        """Count one output that first diverges at `divergence` (None: nowhere)."""
        if divergence is None:
            self.equal += 1
            return
        fine, size = gate.accepts(key, output) if gate is not None else (False, None)
        if fine and not strict:
            self.excused += 1
            return
        self.broken += 1
        self.first = divergence if self.first is None else min(self.first, divergence)
        if size is not None:
            self.worst = size if self.worst is None else max(self.worst, size)

    def result(self, names: list[str]) -> LosslessResult:
        """Return the verdict against the references called `names`."""
        detail = f"greedy: {self.equal} of {self.total} outputs equal {' and '.join(names)}, length included"
        if self.excused:
            detail += f"; {self.excused} differ only where the target's logits tie within rounding"
        if self.broken:
            detail += f"; {self.broken} differ, first at token {self.first}"
        if self.worst is not None:
            detail += f", by at most {self.worst:.2g} in the target's own logits"
        if self.missing:
            detail += f"; {self.missing} prompts have no output"
        extra = {
            "outputs": self.total,
            "equal": self.equal,
            "excused": self.excused,
            "exact_match": self.equal / self.total,
            "first_divergence": self.first,
            "worst_regret": self.worst,
            "against": names,
        }
        return LosslessResult("fail" if self.broken or self.missing else "pass", detail, extra)


def _worst(output: list[int], key: Key, references: Mapping[str, Outputs]) -> int | None:
    """Return the earliest divergence from any reference; 0 when a reference lacks this prompt."""
    found = [
        first_divergence(output, reference[key]) if key in reference else 0
        for reference in references.values()
    ]
    return min((index for index in found if index is not None), default=None)
