"""Speech synthesisers: one that comes from PyPI with its voices inside, and espeak-ng where it is installed."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from ssd_infer.errors import DataError

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Manner:
    """How a sentence is spoken, relative to the voice's habit: 1 changes nothing."""

    speed: float = 1.0
    pitch: float = 1.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A synthesiser: `speak(text, voice, manner)` returns mono samples and their rate in Hz."""

    name: str
    voices: tuple[str, ...]
    speak: Callable[[str, str, Manner], tuple[Samples, int]]
    available: Callable[[], bool]
    version: Callable[[], str]
    remedy: str


def _speak_pico(text: str, voice: str, manner: Manner) -> tuple[Samples, int]:
    from py_nanotts import NanoTTS

    pcm = NanoTTS().speak(text, voice=voice, speed=manner.speed, pitch=manner.pitch)
    return np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0, 16000


def _has_pico() -> bool:
    return find_spec("py_nanotts") is not None


def _pico_version() -> str:
    return metadata.version("py-nanotts")


def _espeak_version() -> str:
    command = ["espeak-ng", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    return done.stdout.partition("Data at")[0].strip()


def _speak_espeak(text: str, voice: str, manner: Manner) -> tuple[Samples, int]:
    import soundfile

    command = ["espeak-ng", "-v", voice, "-s", str(round(165 * manner.speed))]
    command += ["-p", str(round(np.clip(50 * manner.pitch, 0, 99))), "--stdout", "--stdin"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)  # noqa: S603 - no shell
    if done.returncode != 0 or not done.stdout:
        reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise DataError(
            f"data.voices: espeak-ng cannot speak (got {voice!r}: {reason}); see espeak-ng --voices"
        )
    samples, rate = soundfile.read(io.BytesIO(done.stdout), dtype="float32")
    return samples, int(rate)


ENGINES: dict[str, Engine] = {
    "nanotts": Engine(
        "nanotts",
        ("en-US", "en-GB", "de-DE", "es-ES", "fr-FR", "it-IT"),
        _speak_pico,
        _has_pico,
        _pico_version,
        "pip install py-nanotts",
    ),
    "espeak": Engine(
        "espeak",
        ("en-us", "en-us+m3", "en-us+m7", "en-us+f2", "en-us+f4", "en-gb", "en-gb+m1", "en-gb+f3"),
        _speak_espeak,
        lambda: shutil.which("espeak-ng") is not None,
        _espeak_version,
        "install espeak-ng",
    ),
}
"""By name; a voice is called `engine:voice`."""


def split_voice(voice: str) -> tuple[Engine, str]:
    """Return engine and voice of `engine:voice`; raises DataError for an engine nobody knows."""
    name, _, which = voice.partition(":")
    if name not in ENGINES or not which:
        known = ", ".join(f"{engine}:{item.voices[0]}" for engine, item in ENGINES.items())
        raise DataError(f"data.voices: must be named ENGINE:VOICE (got {voice!r}); for example {known}")
    return ENGINES[name], which


def usable_voices(voices: list[str], optional: list[str]) -> list[str]:
    """Return `voices`, and those of `optional` whose engine is installed; DataError when one of `voices` has none."""
    for voice in voices:
        engine, _ = split_voice(voice)
        if not engine.available():
            raise DataError(
                f"data.voices: the engine is not installed (got {voice!r}); {engine.remedy}, or choose another voice"
            )
    return [*voices, *(voice for voice in optional if split_voice(voice)[0].available())]
