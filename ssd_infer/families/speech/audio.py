"""Read and check audio: any rate, mono or more channels, any length; what cannot be recognised is refused in words.

A file is taken for what its bytes say, whatever it is called. Samples leave here as float32, one channel, in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_infer.errors import DataError
from ssd_infer.families.speech.truncation import lost_part

Samples = NDArray[np.float32]

RATES = (4_000, 192_000)
"""Lowest and highest sampling rate believed, in Hz; others come from damaged or hostile headers."""
MAX_CHANNELS = 16
MAX_SECONDS = 4 * 3600.0
SHORTEST_SECONDS = 0.025
"""One analysis window; less holds no frame."""
SILENCE = 1e-5
"""Deviation from the mean, of full scale, below which nothing can be heard (-100 dB)."""
LOUDEST = 8.0
"""Largest float believed, full scale being 1: hot mixes stay below, 16-bit numbers never divided by 32768 do not."""
READ_FRAMES = 1 << 20
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".w64")
"""What a folder is searched for; a single file may have any name."""


class AudioError(DataError):
    """Audio that cannot be recognised: `name: rule (got …); remedy`."""


@dataclass(frozen=True, slots=True)
class Audio:
    """One recording, checked: mono `samples` `(N,)` float32 at `rate` Hz, and what it is called."""

    samples: Tensor
    rate: int
    name: str

    @property
    def seconds(self) -> float:
        """Return the length in seconds."""
        return len(self.samples) / self.rate


def read_audio(path: str | Path, rate: int) -> Audio:
    """Read a file and return it mono at `rate` Hz.

    Raises AudioError when the file is missing, unreadable, empty, no audio, damaged, cut off, silent, not finite, or of
    an impossible length, rate, channel count or scale.
    """
    path, name = Path(path), str(path)
    try:
        if not path.is_file():
            raise AudioError(
                f"{name}: must be an audio file ({'a folder' if path.is_dir() else 'nothing there'})"
            )
        if path.stat().st_size == 0:
            raise AudioError(f"{name}: the file is empty (0 bytes)")
        with path.open("rb") as file:
            samples, found = _decode(file, name)
    except OSError as error:
        raise AudioError(f"{name}: cannot be read ({error.strerror or error})") from error
    return Audio(_checked(samples, found, rate, name), rate, name)


def from_array(waveform: Any, sampling_rate: Any, rate: int, name: str = "audio") -> Audio:
    """Return an array or tensor `(N,)`, `(N, channels)` or `(channels, N)`, sampled at `sampling_rate`, at `rate` Hz.

    Integers are read as full-scale PCM of their width. Raises AudioError as `read_audio` does.
    """
    hertz = int(sampling_rate) if isinstance(sampling_rate, Integral) else 0
    if not RATES[0] <= hertz <= RATES[1]:
        raise AudioError(
            f"{name}: the sampling rate must be {RATES[0]} to {RATES[1]} Hz (got {sampling_rate!r})"
        )
    try:
        values = (
            waveform.detach().cpu().float().numpy() if _is_float_tensor(waveform) else np.asarray(waveform)
        )
    except ValueError as error:
        raise AudioError(f"{name}: must be numbers of shape (N,) or (N, channels) ({error})") from error
    if values.dtype.kind == "i":
        values = values / float(-np.iinfo(values.dtype).min)
    if values.dtype.kind != "f" or values.ndim not in (1, 2):
        raise AudioError(
            f"{name}: must be numbers of shape (N,) or (N, channels) (got {values.dtype} {values.shape})"
        )
    if values.ndim == 2:
        axis = int(values.shape[0] > values.shape[1])
        _check_channels(values.shape[axis], name)
        values = values.mean(axis=axis)
    return Audio(_checked(values.astype(np.float32), hertz, rate, name), rate, name)


def find_audio(path: str | Path) -> list[Path]:
    """Return the audio files below a folder in name order, or the one file `path`; raises AudioError for none."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = sorted(item for item in path.rglob("*") if item.suffix.lower() in SUFFIXES and item.is_file())
    if not found:
        raise AudioError(f"{path}: holds no audio file ({', '.join(SUFFIXES)})")
    return found


def not_tried(path: str | Path, found: Iterable[Path]) -> list[Path]:
    """Return what lies below a folder and `find_audio` left out, in name order: files of other names, dead links.

    `found` is what it returned; a single file leaves nothing out.
    """
    path, tried = Path(path), set(found)
    if not path.is_dir():
        return []
    return sorted(item for item in path.rglob("*") if not item.is_dir() and item not in tried)


def resample(samples: Samples, source: int, target: int) -> Samples:
    """Return `samples` at `target` Hz by polyphase filtering (scipy), low-passed below the lower Nyquist frequency."""
    if source == target:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(source, target)
    done: Samples = resample_poly(samples, target // common, source // common).astype(np.float32)
    return done


def _is_float_tensor(waveform: Any) -> bool:
    return isinstance(waveform, Tensor) and waveform.is_floating_point()


def _decode(file: BinaryIO, name: str) -> tuple[Samples, int]:
    """Return the samples `(N,)` mixed to mono block by block, and their rate."""
    import soundfile

    try:
        with soundfile.SoundFile(_Nameless(file)) as sound:
            _check_header(sound, name)
            samples = np.concatenate([np.zeros(0, np.float32), *_mono_blocks(sound, name)])
            if lost := lost_part(file, sound):
                raise AudioError(
                    f"{name}: must be whole, but was cut off (got {lost}); copy it again, or convert what is "
                    "left of it to WAV or FLAC"
                )
            return samples, int(sound.samplerate)
    except (soundfile.SoundFileError, TypeError, ValueError) as error:
        why = " ".join(str(getattr(error, "error_string", error)).split()).rstrip(".")
        raise AudioError(
            f"{name}: is no audio that can be read ({why}); convert it to WAV or FLAC"
        ) from error


class _Nameless:
    """A file without its name, so that libsndfile judges it by content and not by extension."""

    def __init__(self, file: BinaryIO) -> None:
        self.read, self.seek, self.tell = file.read, file.seek, file.tell
        self.readinto: Any = file.readinto  # type: ignore[attr-defined]


def _check_header(sound: Any, name: str) -> None:
    if not RATES[0] <= sound.samplerate <= RATES[1]:
        raise AudioError(
            f"{name}: the sampling rate must be {RATES[0]} to {RATES[1]} Hz (got {sound.samplerate})"
        )
    _check_channels(sound.channels, name)


def _check_channels(channels: int, name: str) -> None:
    if not 1 <= channels <= MAX_CHANNELS:
        raise AudioError(f"{name}: must have 1 to {MAX_CHANNELS} channels (got {channels})")


def _mono_blocks(sound: Any, name: str) -> Iterator[Samples]:
    """Yield mono blocks until the data ends, whatever length the header claims."""
    read, limit = 0, MAX_SECONDS * sound.samplerate
    while len(block := sound.read(READ_FRAMES, dtype="float32", always_2d=True)):
        read += len(block)
        if read > limit:
            raise AudioError(f"{name}: must be at most {MAX_SECONDS / 3600:g} hours long; cut it into parts")
        yield block.mean(axis=1)


def _checked(samples: Samples, source: int, rate: int, name: str) -> Tensor:
    """Check mono samples and return them at `rate` Hz."""
    seconds = len(samples) / source
    if not len(samples):
        raise AudioError(f"{name}: holds no samples")
    if seconds < SHORTEST_SECONDS:
        count = f"{len(samples)} sample{'s' if len(samples) > 1 else ''} at {source} Hz"
        raise AudioError(f"{name}: must last at least {1000 * SHORTEST_SECONDS:g} ms (got {count})")
    if seconds > MAX_SECONDS:
        raise AudioError(f"{name}: must be at most {MAX_SECONDS / 3600:g} hours long; cut it into parts")
    if not np.isfinite(samples).all():
        bad = int(len(samples) - np.isfinite(samples).sum())
        raise AudioError(f"{name}: {bad} of {len(samples)} samples are NaN or infinite")
    peak = float(np.abs(samples).max())
    if peak > LOUDEST:
        raise AudioError(
            f"{name}: floats must lie in [-1, 1] (peak {peak:g}); divide 16-bit numbers by 32768"
        )
    if float(np.abs(samples - samples.mean(dtype=np.float64)).max()) < SILENCE:
        raise AudioError(f"{name}: holds only silence")
    return torch.from_numpy(np.ascontiguousarray(resample(samples, source, rate)).clip(-1.0, 1.0))
