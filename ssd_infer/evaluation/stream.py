"""Test sampled outputs of any length: each token's place in the target's own distribution must be uniform.

For a token x drawn from p and any fixed order of the vocabulary, the mass of the tokens before x, plus a random share
of x's own, is uniform on [0, 1], and the places of one output are independent (Rosenblatt 1952; randomised for
discrete laws by Brockwell 2007). So the very outputs that were timed can be tested, drafts after a long warm-up
included, at the price of one teacher-forced pass an output. Two orders are used: by p itself, and by p over the
distribution of an early exit, along which the mistakes of a wrong verifier lie: it emits too much of what a draft
likes better than the target does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.target import Target
from ssd_infer.evaluation.distribution import P_VALUE, ChiSquare, chi_square
from ssd_infer.evaluation.enumeration import allowed
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.strategies.study import Sampling

FEWEST_TOKENS, MOST_BINS = 60, 16


@dataclass(frozen=True, slots=True)
class Output:
    """One timed output and what it answered."""

    prompt: list[int]
    tokens: list[int]


Places = list[float | None]


@torch.inference_mode()
def places(
    model: Any, output: Output, sampling: Sampling, generator: torch.Generator
) -> tuple[Places, Places]:
    """Return each token's place by p and by p over an early exit; None for a token the target cannot draw."""
    finals, earlies = _logits(model, output)
    shares = torch.rand(len(output.tokens), generator=generator, dtype=torch.float64).tolist()
    by_p: Places = []
    by_ratio: Places = []
    for final, early, token, share in zip(finals, earlies, output.tokens, shares, strict=True):
        probs = allowed(final, sampling)
        ratio = probs.log() - early.double().log_softmax(-1)
        by_p.append(_place(probs, -probs, token, share))
        by_ratio.append(_place(probs, ratio, token, share))
    return by_p, by_ratio


def _logits(model: Any, output: Output) -> tuple[Tensor, Tensor]:
    """Return logits `(n, V)` of the last layer and of an exit at a quarter of the depth, for each output token."""
    target = Target.of(model)
    ids = torch.tensor([output.prompt + output.tokens], device=target.device)
    out = model(input_ids=ids, output_hidden_states=True)
    window = slice(len(output.prompt) - 1, -1)
    early = target.logits(out.hidden_states[max(1, target.num_layers // 4)][0, window])
    return out.logits[0, window].cpu(), early.cpu()


def _place(probs: Tensor, order: Tensor, token: int, share: float) -> float | None:
    if float(probs[token]) == 0.0:
        return None
    return float(probs[order < order[token]].sum() + share * probs[order == order[token]].sum())


def judge_stream(
    model: Any,
    outputs: Sequence[Output],
    sampling: Sampling,
    drafted: int,
    seed: int = 0,
    plain: bool = False,
) -> LosslessResult:
    """Test all tokens of `outputs` together (χ² over equal bins); an impossible token fails in float32 and wider."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [places(model, output, sampling, generator) for output in outputs if output.tokens]
    by_p = [place for pair in pairs for place in pair[0]]
    if len(by_p) < FEWEST_TOKENS:
        return LosslessResult("not_run", f"sampling: {len(by_p)} timed tokens are too few to test")
    if not drafted and not plain:
        return LosslessResult("not_run", "sampling: nothing was drafted in the timed outputs")
    tests = [_uniform(by_p), _uniform([place for pair in pairs for place in pair[1]])]
    impossible = by_p.count(None) if torch.finfo(model.dtype).bits >= 32 else 0
    p_values = [test.p_value for test in tests]
    detail = (
        f"sampling: places of {len(by_p)} timed tokens in the target's distribution, "
        f"p={p_values[0]:.3g} by probability and {p_values[1]:.3g} by ratio to an early exit"
    )
    if impossible:
        detail += f", {impossible} tokens impossible"
    extra = {
        "places": {"p_values": p_values, "tokens": len(by_p), "impossible": impossible, "drafted": drafted}
    }
    return LosslessResult("fail" if impossible or min(p_values) < P_VALUE else "pass", detail, extra)


def _uniform(found: Places) -> ChiSquare:
    """Test places for uniformity over equal bins, at least five expected in each."""
    known = [place for place in found if place is not None]
    bins = max(1, min(MOST_BINS, len(known) // 5))
    counts: Counter[tuple[int, ...]] = Counter((min(int(place * bins), bins - 1),) for place in known)
    return chi_square(counts, {(index,): 1 / bins for index in range(bins)})


def both(first: LosslessResult, second: LosslessResult) -> LosslessResult:
    """Join two tests of one row: one failure fails it, one pass suffices where the other could not run."""
    verdicts = {first.verdict, second.verdict}
    verdict = next(verdict for verdict in ("fail", "pass", "not_run") if verdict in verdicts)
    detail = f"{first.detail}; {second.detail.removeprefix('sampling: ')}"
    return LosslessResult(verdict, detail, first.extra | second.extra)
