"""`ssd_infer.transcribe`, as a function and as a command: texts, routes, long audio, and every unusable input."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_infer.families.speech.audio import Audio, AudioError
from ssd_infer.families.speech.segments import segments
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor, character_tokenizer
from ssd_infer.strategies.ctc_draft.saved_thresholds import save_thresholds, thresholds_of
from tests.conftest import build_model
from tests.families.speech.support import MELS, tiny_asr

soundfile = pytest.importorskip("soundfile")
RATE = 8000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "step-1"
    tiny_asr(0, 31, eos=1.0).float().save_pretrained(folder)
    extractor = ASRFeatureExtractor(feature_size=MELS, sampling_rate=RATE)
    CTCASRProcessor(extractor, character_tokenizer()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Any:
    return ssd_infer.load(checkpoint, dtype="float32", device="cpu")


def noise(seconds: float, seed: int = 0, rate: int = RATE) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).normal(size=int(seconds * rate))).astype(np.float32)


def test_a_function_and_a_module_of_one_name() -> None:
    module = importlib.import_module("ssd_infer.transcribe")
    assert ssd_infer.transcribe is module
    assert callable(ssd_infer.transcribe)
    with pytest.raises(ConfigError, match="must be a speech model"):
        ssd_infer.transcribe(build_model(), noise(1.0), RATE)
    for wrong in (None, "outputs/step-1"):
        with pytest.raises(ConfigError, match=r"must be a speech model .* pass ssd_infer.load\(DIR\)"):
            ssd_infer.transcribe(wrong, noise(1.0), RATE)


def test_many_recordings_at_once_are_what_each_is_alone(loaded: Any) -> None:
    waves = [noise(0.4 + 0.3 * index, index) for index in range(5)]
    for draft in (None, "ctc_draft", "ctc_draft:lossless"):
        together = ssd_infer.transcribe(loaded, waves, RATE, draft=draft, batch_size=3)
        for index, wave in enumerate(waves):
            alone = ssd_infer.transcribe(loaded, wave, RATE, draft=draft)
            assert alone.texts == [together.texts[index]]
            assert alone.routes == [together.routes[index]]
            assert alone.confidences[0] == pytest.approx(together.confidences[index], abs=1e-5)
    assert ssd_infer.transcribe(loaded, waves, RATE, draft="ctc_draft+lossless").texts == (
        ssd_infer.transcribe(loaded, waves, RATE).texts
    )


def test_what_the_output_holds(loaded: Any, checkpoint: Path) -> None:
    out = ssd_infer.transcribe(loaded, noise(1.0), RATE, draft="ctc_draft", draft_params={"theta_lm": 0.5})
    assert out.draft == "ctc_draft"
    assert out.draft_params["theta_lm"] == 0.5
    assert out.stats.report["audio_seconds"] == pytest.approx(1.0)
    assert out.stats.report["rtfx"] > 0
    assert set(out.stats.total.seconds) == {"features", "encode", "ctc", "verify", "fallback"}
    assert out.segments[0][0].text == out.texts[0]
    bare = ssd_infer.transcribe(
        loaded.model, noise(1.0), RATE, draft="ctc_draft", draft_params={"theta_lm": 0.5}
    )
    assert bare.texts == out.texts, "a bare model finds its processor"


def test_the_models_mode_is_left_as_it_was(loaded: Any) -> None:
    loaded.model.train()
    try:
        ssd_infer.transcribe(loaded, noise(0.5), RATE)
        assert loaded.model.training
        with pytest.raises(AudioError):
            ssd_infer.transcribe(loaded, np.zeros(8000), RATE)
        assert loaded.model.training
    finally:
        loaded.model.eval()


def test_long_audio_is_cut_where_it_is_quiet() -> None:
    wave = torch.from_numpy(noise(60.0))
    for pause in (12.5, 24.0, 33.0, 45.0):
        wave[int(pause * RATE) : int((pause + 0.1) * RATE)] *= 0.001
    parts = list(segments(Audio(wave, RATE, "a"), 0, 15.0))
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].start, parts[-1].end) == (0, len(wave))
    assert max(len(part.samples) for part in parts) <= 15 * RATE
    ends = [part.end / RATE for part in parts[:-1]]
    assert all(any(pause <= end <= pause + 0.1 for pause in (12.5, 24.0, 33.0, 45.0)) for end in ends)


@pytest.mark.parametrize("seconds", [15.0001, 15.5, 29.9, 30.0, 44.0])
def test_no_part_is_too_short_to_hear(seconds: float) -> None:
    parts = list(segments(Audio(torch.from_numpy(noise(seconds)), RATE, "a"), 0, 15.0))
    assert sum(len(part.samples) for part in parts) == int(seconds * RATE)
    assert all(3.0 * RATE <= len(part.samples) <= 15 * RATE for part in parts)


def test_parts_may_be_longer_than_any_recording() -> None:
    (part,) = segments(Audio(torch.from_numpy(noise(3.0)), RATE, "a"), 0, 1e308)
    assert len(part.samples) == 3 * RATE


def test_sixty_minutes(loaded: Any) -> None:
    wave = np.tile(noise(30.0), 120)
    wave[30 * RATE : 90 * RATE] = 0.0
    out = ssd_infer.transcribe(loaded, wave, RATE, draft="ctc_draft:ctc_only", batch_size=16)
    assert out.stats.report["audio_seconds"] == 3600
    assert out.segments[0][-1].end == pytest.approx(3600)
    assert "silence" in {part.route for part in out.segments[0]}
    assert all(part.text == "" for part in out.segments[0] if part.route == "silence")


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((noise(1.0),), {}, "sampling_rate: must be given for arrays"),
        (([], RATE), {}, "audio: must hold at least one"),
        ((noise(1.0), RATE), {"draft": "early_exit"}, "draft: is no draft for speech"),
        ((noise(1.0), RATE), {"draft": "ctc_draft:losless"}, "did you mean 'ctc_draft:lossless'"),
        ((noise(1.0), RATE), {"draft_params": {"theta_lm": 1}}, "draft_params: need a draft"),
        (
            (noise(1.0), RATE),
            {"draft": "ctc_draft", "draft_params": {"theta": 1}},
            "draft_params.theta: is not",
        ),
        ((noise(1.0), RATE), {"batch_size": 0}, "batch_size: must be an integer"),
        (
            (noise(1.0), RATE),
            {"segment_seconds": 0.0},
            "segment_seconds: must be a number of seconds, at least 0.5",
        ),
        (
            (noise(1.0), RATE),
            {"segment_seconds": "a"},
            "segment_seconds: must be a number of seconds.*got 'a'",
        ),
        ((noise(1.0), RATE), {"segment_seconds": math.nan}, "segment_seconds: must be a number"),
        (
            (noise(1.0), RATE),
            {"draft": 5},
            r"draft: is no draft for speech \(got 5\); choose from: ctc_draft",
        ),
        ((noise(1.0), RATE), {"draft": "ctc_draft", "draft_params": 3}, "draft_params: must map names"),
        ((noise(1.0), RATE), {"draft": "ctc_draft", "draft_params": {1: 2}}, "draft_params: must map names"),
    ],
)
def test_wrong_arguments(
    loaded: Any, arguments: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ssd_infer.transcribe(loaded, *arguments, **options)


def test_the_unusable_one_of_many_is_named(loaded: Any) -> None:
    with pytest.raises(AudioError, match=r"audio\[1\]: 8000 of 8000 samples are NaN"):
        ssd_infer.transcribe(loaded, [noise(1.0), np.full(8000, np.nan)], RATE)


def test_text_generation_is_refused(loaded: Any) -> None:
    with pytest.raises(ConfigError, match=r"use ssd_infer\.transcribe"):
        ssd_infer.generate(loaded, [[1, 2]], max_new_tokens=3)


def test_thresholds_hold_for_the_weights_they_were_found_for(checkpoint: Path) -> None:
    model = ssd_infer.load(checkpoint, dtype="float32", device="cpu").model
    path = save_thresholds(model, checkpoint, {"theta_ctc": 1.25, "theta_lm": 0.03}, {})
    try:
        assert thresholds_of(model) == {"theta_ctc": 1.25, "theta_lm": 0.03}
        out = ssd_infer.transcribe(model, noise(0.5), RATE, draft="ctc_draft")
        assert (out.draft_params["theta_ctc"], out.draft_params["theta_lm"]) == (1.25, 0.03)
        save_thresholds(model, checkpoint, {"theta_ctc": None, "theta_lm": 0.5}, {})
        assert thresholds_of(model) == {"theta_ctc": None, "theta_lm": 0.5}
        out = ssd_infer.transcribe(model, noise(0.5), RATE, draft="ctc_draft")
        assert out.draft_params["theta_ctc"] is None, "gate 1 is off, not at its default"
        with torch.no_grad():
            model.ctc_head.weight.add_(0.1)
        assert thresholds_of(model) == {}
        path.write_text("{")
        assert thresholds_of(model) == {}
    finally:
        path.unlink()


def test_the_references_transcribe_too(loaded: Any) -> None:
    for draft in ("sasd", "rescoring"):
        out = ssd_infer.transcribe(loaded, noise(1.0), RATE, draft=draft)
        assert (out.draft, out.routes) == (draft, ["verify"])


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ssd_infer.transcribe", "device=cpu", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.integration
def test_the_command(checkpoint: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([noise(1.0, rate=44_100)] * 2, axis=1), 44_100)
    soundfile.write(tmp_path / "b.wav", np.zeros(8000), RATE)
    (tmp_path / "c.m4a").touch()
    done = command(f"checkpoint={checkpoint}", f"audio={tmp_path}", "segment_seconds=0.6")
    assert done.returncode == 1, "one of two files is silent"
    assert "a.wav" in done.stdout
    assert "confidence" in done.stdout
    assert "RTFx" in done.stdout
    assert "route" in done.stdout
    assert "b.wav: holds only silence" in done.stderr
    assert "1 file was not tried, having no audio file's name: c.m4a" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_the_command_says_what_is_wrong(checkpoint: Path, tmp_path: Path) -> None:
    done = command("checkpoint=/nowhere", f"audio={tmp_path}/none.wav", "draft=early_exit", "batch_size=0")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "Configuration: 4 problems"
    done = command(f"checkpoint={checkpoint}", "audio=" + "x" * 300)
    assert done.returncode == 2
    assert "audio: must be an audio file or a folder" in done.stderr
    soundfile.write(tmp_path / "cut.wav", noise(1.0), RATE)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "cut.wav").read_bytes()[:9000])
    done = command(f"checkpoint={checkpoint}", f"audio={tmp_path / 'cut.wav'}", "draft=sasd")
    assert done.returncode == 1
    assert "cut.wav: must be whole, but was cut off (got 8956 of 16000 bytes)" in done.stderr
    soundfile.write(tmp_path / "short.wav", noise(0.01), RATE)
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "ssd_ctc_asr"
    done = command(f"checkpoint={checkpoint}", f"audio={tmp_path / 'short.wav'}")
    assert done.returncode == 1
    assert "must last at least 25 ms" in done.stderr
