"""Synthesised speech of the closed domain: several voices, speeds, pitches, vocal tracts and noises; no download."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ssd_infer.checkpoint.content import text_digest
from ssd_infer.families.speech.audio import resample
from ssd_infer.families.speech.utterances import Utterance
from ssd_train.config.schema_speech import TTSSpeechConfig
from ssd_train.data.sources import content_share
from ssd_train.data.speech import grammar
from ssd_train.data.speech.engines import Manner, Samples, split_voice, usable_voices
from ssd_train.data.speech.screening import Tally
from ssd_train.data.speech.sources import SpeechSource, Stream, speech_fingerprint

_VERSION = 2
"""Of what this module says for one configuration: stored speech of another version is not reused."""
_HELD = 0.3
"""Share of all sentences, by a hash of the text, that no training voice ever says."""


def tts_source(cfg: TTSSpeechConfig) -> SpeechSource:
    """Return synthesised speech; raise DataError when a voice's engine is missing.

    Held out: `dev` and `test` are other sentences in the training voices, `test_voice` other sentences in a voice that
    training never hears.
    """
    voices = usable_voices(cfg.voices, [])
    more = usable_voices([], cfg.optional_voices)
    held = usable_voices([cfg.heldout_voice], [])

    def stream(part: str, count: int, seed: int, *, noisy: bool, who: list[str] | None = None) -> Stream:
        cast = [who] if who else [voices, more] if more else [voices]

        def utterances(_: Tally) -> Iterator[Utterance]:
            yield from _speak(cfg, part, count, cast, seed, noisy=noisy)

        return utterances

    contents = {"data.voices": _content([*voices, *more, *held])}
    return SpeechSource(
        name="tts_speech",
        fingerprint=speech_fingerprint(cfg, contents),
        contents=contents,
        train=stream("train", cfg.utterances, 1, noisy=True),
        heldout={
            "dev": stream("dev", cfg.heldout_utterances, 2, noisy=False),
            "test": stream("test", cfg.heldout_utterances, 3, noisy=False),
            "test_voice": stream("test", cfg.heldout_utterances, 4, noisy=False, who=held),
        },
    )


def part_of(text: str) -> str:
    """Return where a sentence belongs, by its hash alone: train, dev or test."""
    share = content_share(text)
    return "train" if share >= _HELD else "dev" if share < _HELD / 3 else "test"


def _content(voices: list[str]) -> str:
    """Return a hash of what is said and of who says it: grammar, voices there are, and versions of their engines."""
    engines = {engine.name: engine.version() for engine, _ in map(split_voice, voices)}
    return text_digest([_VERSION, voices, grammar.TEMPLATES, grammar.SLOTS, sorted(engines.items())])


def _speak(
    cfg: TTSSpeechConfig, part: str, count: int, cast: list[list[str]], seed: int, *, noisy: bool
) -> Iterator[Utterance]:
    """Yield `count` utterances of one part; what each is like follows from `seed` and its number.

    A training sentence may come again, in another voice or manner; held-out ones are all different.
    `cast` holds one or two groups of voices; the second one speaks `cfg.optional_share` of the utterances.
    """
    said = grammar.sentences(seed, distinct=part != "train")
    texts = (text for text in said if part_of(text) == part)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        group = cast[int(len(cast) > 1 and rng.random() < cfg.optional_share)]
        voice = group[int(rng.integers(len(group)))]
        text = next(texts)
        samples = synthesise(text, voice, cfg, rng, noisy=noisy)
        yield Utterance(torch.from_numpy(samples), text, f"{part}/{number}", {"voice": voice})


def synthesise(
    text: str, voice: str, cfg: TTSSpeechConfig, rng: np.random.Generator, *, noisy: bool
) -> Samples:
    """Return `text` spoken by `voice` at `cfg.sampling_rate`, varied within the configured ranges."""
    engine, which = split_voice(voice)
    tract = _between(cfg.tract, rng) if noisy else 1.0
    speed = _between(cfg.speed, rng) / tract
    wave, rate = engine.speak(text, which, Manner(speed, _between(cfg.pitch, rng)))
    # Played faster by `tract` and spoken slower by as much: formants move, as in a shorter or longer vocal tract.
    wave = resample(wave, round(rate * tract / 100) * 100, cfg.sampling_rate)
    peak = float(np.abs(wave).max(initial=1e-3))
    wave = wave * np.float32(rng.uniform(0.2, 0.8) / peak)
    if noisy and rng.random() < cfg.noise_share:
        wave = np.add(wave, coloured_noise(wave, _between(cfg.snr, rng), rng))
    return np.clip(wave, -1.0, 1.0).astype(np.float32)


def _between(bounds: list[float], rng: np.random.Generator) -> float:
    low, high = bounds
    return float(rng.uniform(low, high))


def coloured_noise(wave: Samples, snr: float, rng: np.random.Generator) -> Samples:
    """Return noise between white and brown, `snr` decibels below `wave`."""
    white = rng.standard_normal(len(wave))
    colour = rng.uniform(0.0, 1.0)
    spectrum = np.fft.rfft(white)
    spectrum /= np.maximum(np.arange(len(spectrum)), 1.0) ** colour
    noise = np.fft.irfft(spectrum, len(wave))
    power = float(np.mean(wave**2)) / 10 ** (snr / 10)
    scaled: Samples = (noise * np.sqrt(power / max(float(np.mean(noise**2)), 1e-12))).astype(np.float32)
    return scaled
