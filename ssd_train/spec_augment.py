"""SpecAugment (arXiv 1904.08779): hide stripes of time and of frequency from the encoder."""

from __future__ import annotations

from dataclasses import dataclass

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


def spec_augment(features: Tensor, lengths: Tensor, stripes: Stripes, generator: torch.Generator) -> Tensor:
    """Return a copy of `features` `(B, F, mel)` with stripes set to 0, the mean of normalised features.

    `generator` lives on the CPU; what is hidden follows from it alone, not from the device.
    """
    batch, frames, mel = features.shape
    limits = (lengths.cpu() * stripes.time_share).clamp(max=stripes.time_width)
    hidden = _stripes(frames, stripes.time_masks, limits, lengths.cpu(), generator)[:, :, None]
    width = torch.full((batch,), float(min(stripes.frequency_width, mel)))
    hidden = (
        hidden
        | _stripes(mel, stripes.frequency_masks, width, torch.full((batch,), mel), generator)[:, None, :]
    )
    return features.masked_fill(hidden.to(features.device), 0.0)


def _stripes(size: int, count: int, limits: Tensor, spans: Tensor, generator: torch.Generator) -> Tensor:
    """Return bool `(B, size)`: `count` stripes a row, each at most `limits[b]` wide and within `spans[b]`."""
    drawn = torch.rand((2, len(limits), count), generator=generator)
    widths = (drawn[0] * (limits[:, None] + 1)).floor().clamp(max=limits[:, None].floor())
    starts = (drawn[1] * (spans[:, None] - widths + 1)).floor()
    places = torch.arange(size)[None, None]
    inside = (places >= starts[..., None]) & (places < (starts + widths)[..., None])
    return inside.any(dim=1)
