"""Augmented features: stripes hidden (SpecAugment, arXiv 1904.08779), and voices of other vocal tracts (VTLP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.audio_utils import hertz_to_mel, mel_to_hertz


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


def warp_frequencies(
    features: Tensor, most: float, band: tuple[float, float], generators: Sequence[np.random.Generator]
) -> Tensor:
    """Return `features` `(B, F, mel)` with each utterance's formants moved by a factor of its own.

    The factor lies between 1 / (1 + `most`) and 1 + `most`, evenly in its logarithm, as if the vocal tract were longer
    or shorter (Jaitly & Hinton 2013). Bins lie on the mel scale between the frequencies of `band` in Hz. It costs no
    new feature extraction, so that every pass over the data hears other voices.
    """
    mel = features.shape[2]
    factors = np.exp([own.uniform(-1, 1) * np.log1p(most) for own in generators])
    places = torch.from_numpy(_places(mel, band, factors)).to(features.device, features.dtype)
    below = places.floor().clamp(max=max(mel - 2, 0))
    above = (below + 1).clamp(max=mel - 1)
    share = (places - below)[:, None, :]
    low, high = (features.gather(2, index.long()[:, None, :].expand_as(features)) for index in (below, above))
    return low + share * (high - low)


def _places(mel: int, band: tuple[float, float], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where in the bins `(B, mel)` each warped bin is read: the centre frequency times the row's factor."""
    low, high = (float(hertz_to_mel(edge, mel_scale="htk")) for edge in band)
    edges = np.linspace(low, high, mel + 2)
    centres = mel_to_hertz(edges[1:-1], mel_scale="htk")
    wanted = hertz_to_mel(np.clip(factors[:, None] * centres, *band), mel_scale="htk")
    places: NDArray[np.float64] = np.clip((wanted - edges[1]) / (edges[1] - edges[0]), 0, mel - 1)
    return places
