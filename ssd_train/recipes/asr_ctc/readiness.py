"""Training for speculation: decoder inputs that are CTC hypotheses, and what should follow their mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd_train.losses.optimal import optimal_targets


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """Teacher-forced decoding: `inputs` and `targets` int64 `(B, U)`, bool `mask` of the counted positions."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor


def gold_batch(labels: Tensor, lengths: Tensor, bos: int, eos: int) -> DecoderBatch:
    """Return BOS + label as inputs and label + EOS as targets."""
    places = torch.arange(labels.shape[1] + 1, device=labels.device)
    padded = torch.nn.functional.pad(labels, (0, 1), value=eos)
    targets = torch.where(places < lengths[:, None], padded, eos)
    inputs = torch.cat([torch.full_like(labels[:, :1], bos), targets[:, :-1]], dim=1)
    if not labels.shape[1]:
        inputs = torch.full_like(targets, bos)
    return DecoderBatch(inputs, targets, places <= lengths[:, None])


def corrupted_batch(
    gold: DecoderBatch,
    labels: list[list[int]],
    hypotheses: list[list[int]],
    share: float,
    rate: float,
    generators: Sequence[np.random.Generator],
) -> DecoderBatch:
    """Return `gold` with a `share` of its rows reading their hypothesis, `rate` of its tokens replaced by others of it.

    Targets of those rows are optimal completions, so that a token following a wrong prefix is judged for what it is.
    Hypotheses much longer than their label keep the gold row: they come from a head that has learned nothing yet.
    What happens to a row follows from its own generator, whatever batch it is in.
    """
    spoilt = [
        own.random() < share and 0 < len(said) <= _longest(label)
        for own, said, label in zip(generators, hypotheses, labels, strict=True)
    ]
    needed = [len(said) + 1 for said, chosen in zip(hypotheses, spoilt, strict=True) if chosen]
    inputs, targets, mask = _widened(gold, max(needed, default=0))
    width = inputs.shape[1]
    for row in np.flatnonzero(spoilt).tolist():
        prefix, rng = np.asarray(hypotheses[row], dtype=np.int64), generators[row]
        wrong = rng.random(len(prefix)) < rate
        prefix[wrong] = rng.choice(np.unique([*labels[row], *hypotheses[row]]), int(wrong.sum()))
        wanted = optimal_targets(prefix.tolist(), labels[row], int(gold.targets[row, len(labels[row])]), rng)
        size = len(prefix) + 1
        inputs[row, 1:size] = torch.as_tensor(prefix, device=inputs.device)
        targets[row, :size] = torch.as_tensor(wanted, device=inputs.device)
        mask[row] = torch.arange(width, device=mask.device) < size
    return DecoderBatch(inputs, targets, mask)


def _longest(label: list[int]) -> int:
    """Return how many tokens a hypothesis of `label` may have."""
    return len(label) + len(label) // 4 + 1


def _widened(gold: DecoderBatch, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return copies of inputs, targets and mask at least `width` wide; what is added does not count."""
    more = max(0, width - gold.inputs.shape[1])
    pad = torch.nn.functional.pad
    return pad(gold.inputs, (0, more)), pad(gold.targets, (0, more)), pad(gold.mask, (0, more))
