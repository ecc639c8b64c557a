"""Training for speculation: decoder inputs that are CTC hypotheses, and what should follow their mistakes."""

from __future__ import annotations

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
    rng: np.random.Generator,
) -> DecoderBatch:
    """Return `gold` with a `share` of its rows reading their hypothesis, `rate` of its tokens replaced at random.

    Targets of those rows are optimal completions, so that a token following a wrong prefix is judged for what it is.
    Hypotheses longer than the batch is wide keep the gold row: they come from a head that has learned nothing yet.
    """
    inputs, targets, mask = gold.inputs.clone(), gold.targets.clone(), gold.mask.clone()
    width = inputs.shape[1]
    letters = np.unique(np.concatenate([np.asarray(row) for row in labels if row] or [np.zeros(0, int)]))
    for row in np.flatnonzero(rng.random(len(labels)) < share).tolist():
        prefix = np.asarray(hypotheses[row], dtype=np.int64)
        if not 0 < len(prefix) < width or not len(letters):
            continue
        wrong = rng.random(len(prefix)) < rate
        prefix[wrong] = rng.choice(letters, int(wrong.sum()))
        wanted = optimal_targets(prefix.tolist(), labels[row], int(gold.targets[row, len(labels[row])]), rng)
        size = len(prefix) + 1
        inputs[row, 1:size] = torch.as_tensor(prefix, device=inputs.device)
        targets[row, :size] = torch.as_tensor(wanted, device=inputs.device)
        mask[row] = torch.arange(width, device=mask.device) < size
    return DecoderBatch(inputs, targets, mask)
