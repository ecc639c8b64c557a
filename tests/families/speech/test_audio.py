"""Reading audio: every usable form arrives as mono float32 at the wanted rate; everything else is refused in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ssd_infer.families.speech.audio import (
    AudioError,
    find_audio,
    from_array,
    not_tried,
    read_audio,
    resample,
)

soundfile = pytest.importorskip("soundfile")
RATE = 16_000


def tone(seconds: float = 0.5, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate: int = RATE, **options: str) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.mark.parametrize("source", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("target", [8_000, 16_000])
def test_rates_and_channels(tmp_path: Path, source: int, channels: int, target: int) -> None:
    samples = tone(0.5, source)
    path = write(tmp_path / "a.wav", np.stack([samples] * channels, axis=1), source)
    audio = read_audio(path, target)
    assert audio.samples.dtype == torch.float32
    assert abs(audio.seconds - 0.5) < 1e-3
    middle = slice(target // 10, 4 * target // 10)
    assert np.abs(audio.samples.numpy()[middle] - tone(0.5, target)[middle]).max() < 5e-3


def test_resampling_removes_what_the_lower_rate_cannot_hold() -> None:
    kept, removed = tone(0.5, 48_000, 1_000.0), tone(0.5, 48_000, 7_000.0)
    middle = slice(800, 3200)
    assert np.abs(resample(kept, 48_000, 8_000)[middle]).max() > 0.29
    assert np.abs(resample(removed, 48_000, 8_000)[middle]).max() < 0.01


@pytest.mark.parametrize("name", ["speech.mp3", "speech.raw", "speech.txt", "speech"])
def test_content_decides_and_not_the_extension(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.wav", tone()).rename(tmp_path / name)
    assert read_audio(tmp_path / name, RATE).seconds == 0.5


@pytest.mark.parametrize("form", ["FLAC", "OGG"])
def test_compressed_files(tmp_path: Path, form: str) -> None:
    assert read_audio(write(tmp_path / "a", tone(), format=form), RATE).seconds == 0.5


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros(0), "holds no samples"),
        (np.zeros(8000), "only silence"),
        (np.full(8000, 0.25), "only silence"),
        (30_000 * np.sin(np.arange(8000)), r"floats must lie in \[-1, 1\] .peak 29999"),
        (np.ones(1), "at least 25 ms .got 1 sample at"),
        (np.where(np.arange(8000) == 99, np.nan, 0.1), "1 of 8000 samples are NaN or infinite"),
        (np.where(np.arange(8000) % 2, np.inf, 0.1), "4000 of 8000 samples"),
    ],
)
def test_unusable_samples(tmp_path: Path, samples: np.ndarray, words: str) -> None:
    path = write(tmp_path / "bad.wav", samples.astype(np.float32), subtype="FLOAT")
    with pytest.raises(AudioError, match=words):
        read_audio(path, RATE)
    with pytest.raises(AudioError, match=words):
        from_array(torch.from_numpy(samples), RATE, RATE)


def test_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("not audio " * 50)
    whole = write(tmp_path / "a.flac", np.random.default_rng(0).normal(0, 0.1, 40_000)).read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AudioError, match=r"cannot be read \(File name too long"):
        read_audio("x" * 300, RATE)
    cases = {"empty.wav": "empty .0 bytes", "text.wav": "no audio that can be read", "cut.flac": "no audio"}
    for name, words in (cases | {"missing.wav": "nothing there", ".": "a folder"}).items():
        with pytest.raises(AudioError, match=words) as caught:
            read_audio(tmp_path / name, RATE)
        assert "\n" not in str(caught.value)


def cut(path: Path, share: float = 0.6) -> Path:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    return path


@pytest.mark.parametrize("form", ["WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "OGG", "FLAC"])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, form: str) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 200_000)
    path = write(tmp_path / "a.audio", samples, format=form)
    assert read_audio(path, RATE).seconds == 12.5
    words = "no audio that can be read" if form == "FLAC" else r"must be whole, but was cut off \(got "
    with pytest.raises(AudioError, match=words) as caught:
        read_audio(cut(path), RATE)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("share", [0.5, 0.999])
def test_an_ogg_stream_must_end(tmp_path: Path, kind: str, share: float) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 200_000)
    path = write(tmp_path / "a.ogg", samples, format="OGG", subtype=kind)
    assert read_audio(path, RATE).seconds == 12.5
    with pytest.raises(AudioError, match=r"cut off \(got no end-of-stream page\); copy it again"):
        read_audio(cut(path, share), RATE)


@pytest.mark.parametrize("kind", ["PCM_16", "ALAC_16"])
def test_a_core_audio_file_must_be_whole(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.caf", np.random.default_rng(0).normal(0, 0.1, 200_000), subtype=kind)
    assert read_audio(path, RATE).seconds == 12.5
    with pytest.raises(AudioError, match=r"cut off \(got \d+ of \d+ bytes\)"):
        read_audio(cut(path, 0.9999), RATE)


def test_a_flac_file_must_hold_the_samples_it_promises(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", tone())
    whole = bytearray(path.read_bytes())
    whole[22:26] = (8500).to_bytes(4, "big")  # the low half of STREAMINFO's number of samples
    path.write_bytes(whole)
    with pytest.raises(AudioError, match="no audio that can be read"):
        read_audio(path, RATE)


def with_comments(wav: bytes, count: int) -> bytes:
    """Return `wav` with so many comments before the samples that libsndfile's log of its header is full."""
    info = b"INFO" + count * (b"ICMT" + (60).to_bytes(4, "little") + 59 * b"x" + b"\0")
    start = wav.index(b"data")
    joined = wav[8:start] + b"LIST" + len(info).to_bytes(4, "little") + info + wav[start:]
    return b"RIFF" + len(joined).to_bytes(4, "little") + joined


def test_comments_hide_no_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone())
    path.write_bytes(with_comments(path.read_bytes(), 100))
    assert read_audio(path, RATE).seconds == 0.5
    with pytest.raises(AudioError, match=r"cut off \(got \d+ of 16000 bytes\)"):
        read_audio(cut(path, 0.8), RATE)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF - 36])
def test_a_wav_written_to_a_pipe_does_not_know_its_size(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "a.wav", tone())
    whole = bytearray(path.read_bytes())
    whole[40:44] = size.to_bytes(4, "little")
    path.write_bytes(whole)
    assert read_audio(path, RATE).seconds == 0.5


def test_a_wav_that_was_never_closed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone())
    whole = bytearray(path.read_bytes())
    whole[4:8], whole[40:44] = (8).to_bytes(4, "little"), bytes(4)
    path.write_bytes(whole)
    assert read_audio(path, RATE).seconds == 0.5


def test_impossible_headers(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"4000 to 192000 Hz \(got 100\)"):
        read_audio(write(tmp_path / "slow.wav", tone(), 100), RATE)
    with pytest.raises(AudioError, match=r"1 to 16 channels \(got 20\)"):
        read_audio(write(tmp_path / "wide.wav", np.zeros((4000, 20))), RATE)


def test_arrays_of_every_usual_form() -> None:
    want = from_array(tone(), RATE, RATE).samples
    assert torch.equal(want, torch.from_numpy(tone()))
    pcm = np.round(tone() * 32768).astype(np.int16)
    assert torch.allclose(from_array(pcm, RATE, RATE).samples, want, atol=2e-5)
    for stereo in (
        np.stack([tone()] * 2),
        np.stack([tone()] * 2, axis=1),
        torch.from_numpy(np.stack([tone()] * 2)),
    ):
        assert torch.allclose(from_array(stereo, RATE, RATE).samples, want)
    assert torch.equal(from_array(tone(), np.int64(RATE), RATE).samples, want)
    half = torch.from_numpy(tone()).to(torch.bfloat16)
    assert torch.allclose(from_array(half, RATE, RATE).samples, want, atol=2e-3)


@pytest.mark.parametrize(
    ("waveform", "rate", "words"),
    [
        (tone(), 0, "sampling rate"),
        (tone(), 16_000.0, "sampling rate"),
        (np.zeros((2, 3, 4)), RATE, "shape"),
        (np.array(["a"]), RATE, "must be numbers"),
        (np.zeros((300, 400)), RATE, "channels"),
        ([[0.1], [0.1, 0.2]], RATE, "must be numbers of shape"),
    ],
)
def test_arrays_that_are_no_audio(waveform: np.ndarray, rate: int, words: str) -> None:
    with pytest.raises(AudioError, match=words):
        from_array(waveform, rate, RATE)


def test_folders_are_searched_by_extension(tmp_path: Path) -> None:
    write(tmp_path / "b.wav", tone())
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "a.FLAC", tone(), format="FLAC")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "dead.wav").symlink_to(tmp_path / "nowhere.wav")
    assert [path.name for path in find_audio(tmp_path)] == ["b.wav", "a.FLAC"]
    assert [path.name for path in not_tried(tmp_path, find_audio(tmp_path))] == ["dead.wav", "notes.txt"]
    assert not_tried(tmp_path / "b.wav", find_audio(tmp_path / "b.wav")) == []
    assert find_audio(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    (tmp_path / "none").mkdir()
    with pytest.raises(AudioError, match="no audio file"):
        find_audio(tmp_path / "none")
