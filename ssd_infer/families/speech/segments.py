"""Cut long audio where it is quietest, so that no part is longer than the model has heard in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ssd_infer.families.speech.audio import SILENCE, Audio

LONGEST_SECONDS = 20.0
"""Where the model's configuration names no `max_audio_seconds`."""
EARLIEST, REST = 0.5, 0.25
"""Shares of the longest part: before the first no cut is made, and the last part is at least the second."""
_WINDOW = 0.03


@dataclass(frozen=True, slots=True)
class Segment:
    """Samples `start` to `end` of recording number `owner`."""

    owner: int
    start: int
    end: int
    samples: Tensor
    silent: bool
    """Nothing can be heard; decoding it would invent words."""


def segments(audio: Audio, owner: int, longest: float) -> Iterator[Segment]:
    """Yield the parts of `audio` in order, each at most `longest` seconds; together they are all of it."""
    start, total = 0, len(audio.samples)
    most = int(min(longest * audio.rate, total))
    while start < total:
        end = total if total - start <= most else start + _quietest(audio.samples[start:], most, audio.rate)
        part = audio.samples[start:end]
        silent = float((part - part.mean()).abs().max()) < SILENCE
        yield Segment(owner, start, end, part, silent)
        start = end


def _quietest(rest: Tensor, most: int, rate: int) -> int:
    """Return where to cut `rest` `(N,)`, N > most: the middle of the quietest window in reach."""
    low, high = int(EARLIEST * most), min(most, len(rest) - int(REST * most))
    width = max(1, int(_WINDOW * rate))
    reach = rest[low:high]
    if len(reach) < 2 * width:
        return high
    energy = reach[: len(reach) // width * width].view(-1, width).square().sum(dim=1)
    return low + int(energy.argmin()) * width + width // 2
