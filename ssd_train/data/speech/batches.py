"""Batches by length: utterances of like length together, each batch about as many seconds of padded audio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ssd_infer.models.asr_processor import pad_features

Sample = Mapping[str, Any]
"""`features` float32 `(F, mel)` and `labels`, a list of ids."""


class Samples(Protocol):
    """Utterances that know their lengths without being read."""

    def __len__(self) -> int:
        """Return their number."""

    def __getitem__(self, index: int) -> Sample:
        """Return one."""

    @property
    def frames(self) -> NDArray[np.int64]:
        """Return the feature frames of each."""


def length_batches(
    frames: NDArray[np.int64], budget: int, most: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return index lists that cover every utterance once, each of at most `budget` padded frames and `most` rows.

    Lengths are jittered by a tenth before sorting, so that another pass makes other batches. An utterance longer than
    the budget is a batch of its own.
    """
    order = np.argsort(frames * rng.uniform(0.9, 1.1, len(frames)), kind="stable")
    batches: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for index in order.tolist():
        wider = max(longest, int(frames[index]))
        if current and (wider * (len(current) + 1) > budget or len(current) == most):
            batches.append(current)
            current, wider = [], int(frames[index])
        current.append(index)
        longest = wider
    return [*batches, current] if current else batches


class BatchedSamples(Dataset[list[Sample]]):
    """A dataset whose items are whole batches; `train.batch_size` then counts batches of `data.batch_seconds`.

    Several passes over the utterances lie one after the other, each with batches of its own.
    """

    def __init__(self, samples: Samples, budget: int, most: int, *, seed: int, at_least: int = 1) -> None:
        """Lay out passes until there are `at_least` batches."""
        self.samples = samples
        self.batches: list[list[int]] = []
        rng = np.random.default_rng(seed)
        while len(samples) and len(self.batches) < at_least:
            self.batches += length_batches(samples.frames, budget, most, rng)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def __getitem__(self, index: int) -> list[Sample]:
        """Return the utterances of one batch."""
        return [self.samples[row] for row in self.batches[index]]


def collate(items: Sequence[Any]) -> dict[str, Tensor]:
    """Return one batch of all utterances in `items`, batches of utterances.

    Keys: `input_features` `(B, F, mel)`, `feature_lengths` `(B,)`, `labels` int64 `(B, U)` padded with 0, and
    `label_lengths` `(B,)`.
    """
    samples = list(_flat(items))
    labels = [torch.as_tensor(sample["labels"], dtype=torch.long) for sample in samples]
    return {
        **pad_features([sample["features"] for sample in samples]),
        "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True),
        "label_lengths": torch.tensor([len(row) for row in labels]),
    }


def _flat(items: Sequence[Any]) -> Iterator[Sample]:
    for item in items:
        if isinstance(item, Mapping):
            yield item
        else:
            yield from item
