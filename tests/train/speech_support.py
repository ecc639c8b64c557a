"""Small speech corpora and runs for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from ssd_train.config.schema import EvalConfig, Root, TrackingConfig, TrainConfig
from ssd_train.config.schema_speech import ManifestSpeechConfig, SpeechModelConfig
from ssd_train.recipes.asr_ctc.settings import ASRCTCConfig, SpecAugmentConfig

RATE = 8000
TONES = {"la": 400.0, "so": 900.0, "mi": 1600.0}
"""Words, and the frequency in Hz that says them."""


def tone(word: str, seconds: float = 0.35, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Return a word as a tone with a little noise."""
    time = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.01, len(time))
    return (0.4 * np.sin(2 * np.pi * TONES[word] * time) + noise).astype(np.float32)


def write_clips(directory: Path, takes: int = 8, speakers: tuple[str, ...] = ("ann", "bob")) -> Path:
    """Write a manifest of single words; take 0 is the test split."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for speaker in speakers:
        for word in TONES:
            for take in range(takes):
                name = f"{word}_{speaker}_{take}.wav"
                seconds = 0.3 + 0.02 * take
                soundfile.write(directory / name, tone(word, seconds, seed=take), RATE)
                split = "test" if take == 0 else "train"
                lines.append({"audio": name, "text": word, "speaker": speaker, "split": split})
    path = directory / "manifest.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def manifest_config(path: Path, **changes: Any) -> ManifestSpeechConfig:
    """Return strings of two or three words at 8 kHz."""
    settings: dict[str, Any] = {
        "path": str(path),
        "sampling_rate": RATE,
        "validation_share": 0.2,
        "join_clips": [2, 3],
        "strings": 24,
        "heldout_strings": 6,
        "batch_seconds": 4.0,
    }
    return ManifestSpeechConfig(**{**settings, **changes})


def speech_model(**changes: Any) -> SpeechModelConfig:
    """Return a model of width 16 without dropout."""
    settings: dict[str, Any] = {
        "encoder_layers": 2,
        "encoder_size": 16,
        "encoder_heads": 2,
        "encoder_ffn": 24,
        "conv_channels": 4,
        "mel_bins": 20,
        "dropout": 0.0,
        "init_std": 0.2,
        "decoder_layers": 1,
        "decoder_size": 16,
        "decoder_heads": 2,
        "decoder_ffn": 24,
    }
    return SpeechModelConfig(**{**settings, **changes})


def speech_root(directory: Path, *, recipe: ASRCTCConfig | None = None, **train: Any) -> Root:
    """Return a run on the toy corpus below `directory`."""
    settings: dict[str, Any] = {
        "max_steps": 6,
        "batch_size": 1,
        "save_steps": 3,
        "logging_steps": 2,
        "eval_steps": 0,
        "eval_batches": 1,
        "learning_rate": 3e-3,
    }
    return Root(
        recipe_name="asr_ctc",
        output_root=str(directory / "outputs"),
        device="cpu",
        threads=1,
        train=TrainConfig(**{**settings, **train}),
        eval=EvalConfig(enabled=False),
        model=speech_model(),
        data=manifest_config(write_clips(directory / "clips")),
        tracking=TrackingConfig(name="none"),
        recipe=recipe or ASRCTCConfig(spec_augment=SpecAugmentConfig(time_share=0.1)),
    )
