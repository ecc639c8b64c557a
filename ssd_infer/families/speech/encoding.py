"""From samples to the encoder's output, and which utterances go through it together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ssd_infer.families.speech.result import Timer


@torch.inference_mode()
def encode(model: Any, processor: Any, waves: Sequence[Tensor], timer: Timer) -> Any:
    """Return the encoder's output for mono `waves` `(N_i,)` at the processor's rate, batched and right-padded."""
    with timer.phase("features"):
        batch = processor.feature_extractor(list(waves))
    with timer.phase("encode"):
        features = batch["input_features"].to(device=model.device, dtype=model.dtype)
        return model.encode(features, batch["feature_lengths"])


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield indices in batches of at most `size`, utterances of like length together, longest first."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), size):
        yield order[start : start + size]
