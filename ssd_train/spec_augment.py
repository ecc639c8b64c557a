"""SpecAugment (arXiv 1904.08779): hide stripes of time and of frequency from the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stripes:
    """How many stripes, and how wide they may be: mel bins, and frames as a share of the utterance up to a limit."""

    frequency_masks: int = 2
    frequency_width: int = 10
    time_masks: int = 2
    time_width: int = 40
    time_share: float = 0.06


def spec_augment(
    features: Tensor, lengths: Tensor, stripes: Stripes, generators: Sequence[np.random.Generator]
) -> Tensor:
    """Return a copy of `features` `(B, F, mel)` with stripes set to 0, the mean of normalised features.

    What is hidden of an utterance follows from its own generator alone, not from its neighbours, nor the device.
    """
    batch, frames, mel = features.shape
    limits = (lengths.cpu() * stripes.time_share).clamp(max=stripes.time_width)
    times = _drawn(stripes.time_masks, generators)
    hidden = _stripes(frames, times, limits, lengths.cpu())[:, :, None]
    width = torch.full((batch,), float(min(stripes.frequency_width, mel)))
    bins = _drawn(stripes.frequency_masks, generators)
    hidden = hidden | _stripes(mel, bins, width, torch.full((batch,), mel))[:, None, :]
    return features.masked_fill(hidden.to(features.device), 0.0)


def _drawn(count: int, generators: Sequence[np.random.Generator]) -> Tensor:
    """Return numbers in [0, 1) `(2, B, count)`, each row from its own generator."""
    return torch.stack([torch.from_numpy(own.random((2, count))) for own in generators], dim=1)


def _stripes(size: int, drawn: Tensor, limits: Tensor, spans: Tensor) -> Tensor:
    """Return bool `(B, size)`: a stripe for each number `(2, B, S)`, at most `limits[b]` wide and within `spans[b]`."""
    widths = (drawn[0] * (limits[:, None] + 1)).floor().clamp(max=limits[:, None].floor())
    starts = (drawn[1] * (spans[:, None] - widths + 1)).floor()
    places = torch.arange(size)[None, None]
    inside = (places >= starts[..., None]) & (places < (starts + widths)[..., None])
    return inside.any(dim=1)
