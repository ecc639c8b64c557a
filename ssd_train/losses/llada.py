"""LLaDA (arXiv 2502.09992): pre-training, and fine-tuning on answers with the prompt left clean.

p = (1−ε)t + ε. Pre-training: Σ_masked CE/p / (B·L). Fine-tuning: the mean over examples of Σ_masked CE/p / (answer
length).
"""

from __future__ import annotations

from torch import Tensor

from ssd_train.losses.corruption import Corruption


def mask_probability(t: Tensor, eps: float = 1e-3) -> Tensor:
    """Return p = (1−ε)t + ε."""
    return (1 - eps) * t + eps


def corrupt(times: Tensor, numbers: Tensor, attended: Tensor, eps: float = 1e-3) -> Corruption:
    """Noise a batch for pre-training: `times` `(B, 1)`, `numbers` `(B, L)` uniform, `attended` bool `(B, L)`."""
    p = mask_probability(times, eps)
    return Corruption((numbers < p) & attended, (1 / p).expand_as(numbers))


def denominator(attended: Tensor) -> Tensor:
    """Return the attended tokens of a pre-training batch."""
    return attended.sum()


def corrupt_answers(times: Tensor, numbers: Tensor, answer: Tensor, eps: float = 1e-3) -> Corruption:
    """Noise a batch for fine-tuning: only tokens of `answer`, bool `(B, L)`, its trained padding among them.

    Every example weighs the same, however long its answer; one without an answer contributes nothing.
    """
    p = mask_probability(times, eps)
    lengths = answer.sum(1, keepdim=True).clamp(min=1)
    return Corruption((numbers < p) & answer, (1 / (p * lengths)).expand_as(numbers))


def denominator_answers(answer: Tensor) -> Tensor:
    """Return the examples of a fine-tuning batch that have an answer."""
    return answer.any(1).sum()


def cut_length(number: float, length: int) -> int:
    """Return a length in 1..`length` from a uniform number: 1 % of pre-training batches are cut to one.

    Models otherwise meet only full contexts, which also makes them repeat under confidence sampling.
    """
    return 1 + min(int(number * length), length - 1)
