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
        complete = len(output) == self.max_new_tokens or (bool(output) and output[-1] in self.eos)
        worst, tolerance = regret(self.model, self.prompts[key[1:]], output)
        return complete and worst <= tolerance, worst


@torch.inference_mode()
def regret(model: Any, prompt: list[int], output: list[int]) -> tuple[float, float]:
    """Return the largest logit regret of `output` after `prompt`, and the tolerance of the logits' precision.

    The tolerance is 8 rounding steps of the dtype at the size of the largest logit.
    """
    ids = torch.tensor([prompt + output], device=model.device)
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
    outputs: Outputs, references: Mapping[str, Outputs], gate: Regret | None = None
) -> LosslessResult:
    """Compare `outputs` with every reference decoding (by name); any difference fails, a strict prefix too.

    `gate` (lower precision only) may excuse a difference. Not run when there is nothing to compare.
    """
    references = {name: reference for name, reference in references.items() if reference}
    if not outputs or not references:
        return LosslessResult(
            "not_run", "no reference decoding to compare with" if outputs else "nothing was decoded"
        )
    equal, excused, broken, first = 0, 0, [], None
    for key in sorted(outputs):
        found = _worst(outputs[key], key, references)
        if found is None:
            equal += 1
        elif gate is not None and gate.accepts(key, outputs[key])[0]:
            excused += 1
        else:
            broken.append(key)
            first = found if first is None else min(first, found)
    missing = sorted({key for reference in references.values() for key in reference} - set(outputs))
    return _result(len(outputs), equal, excused, broken, missing, first, sorted(references))


def _worst(output: list[int], key: Key, references: Mapping[str, Outputs]) -> int | None:
    """Return the earliest divergence from any reference; 0 when a reference lacks this prompt."""
    found = [
        first_divergence(output, reference[key]) if key in reference else 0
        for reference in references.values()
    ]
    return min((index for index in found if index is not None), default=None)


def _result(
    total: int,
    equal: int,
    excused: int,
    broken: list[Key],
    missing: list[Key],
    first: int | None,
    names: list[str],
) -> LosslessResult:
    against = " and ".join(names)
    detail = f"greedy: {equal} of {total} outputs equal {against}, length included"
    if excused:
        detail += f"; {excused} differ only where the target's logits tie within rounding"
    if broken:
        detail += f"; {len(broken)} differ, first at token {first}"
    if missing:
        detail += f"; {len(missing)} prompts have no output"
    extra = {
        "outputs": total,
        "equal": equal,
        "excused": excused,
        "exact_match": equal / total,
        "first_divergence": first,
        "against": names,
    }
    return LosslessResult("fail" if broken or missing else "pass", detail, extra)
