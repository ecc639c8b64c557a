"""Features and ids: nothing depends on batch mates, and unknown characters are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ssd_infer.models.asr_processor import ASRFeatureExtractor, character_tokenizer, unknown_characters


def _wave(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, count).astype(np.float32)


@pytest.mark.parametrize(("rate", "n_fft", "hop"), [(16000, 512, 160), (8000, 256, 80)])
def test_windows_follow_the_sampling_rate(rate: int, n_fft: int, hop: int) -> None:
    extractor = ASRFeatureExtractor(40, rate)
    assert (extractor.n_fft, extractor.hop_length) == (n_fft, hop)
    assert extractor.extract(_wave(rate)).shape == (101, 40)


def test_a_batch_is_padded_and_changes_no_row() -> None:
    extractor = ASRFeatureExtractor(40)
    waves = [_wave(8000), _wave(3000, 1)]
    data = extractor(waves, sampling_rate=16000)
    assert data["feature_lengths"].tolist() == [51, 19]
    for row, wave in enumerate(waves):
        length = data["feature_lengths"][row]
        assert torch.equal(data["input_features"][row, :length], extractor.extract(wave))
    assert not data["input_features"][1, 19:].any()


@pytest.mark.parametrize("count", [1, 100])
def test_clips_shorter_than_a_window_give_finite_features(count: int) -> None:
    assert torch.isfinite(ASRFeatureExtractor().extract(_wave(count))).all()


def test_silence_gives_finite_features() -> None:
    assert torch.isfinite(ASRFeatureExtractor().extract(np.zeros(4000, np.float32))).all()


def test_loudness_hardly_matters() -> None:
    extractor, wave = ASRFeatureExtractor(), _wave(16000)
    torch.testing.assert_close(extractor.extract(wave), extractor.extract(wave * 0.5), atol=0.02, rtol=0)


def test_another_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 16000"):
        ASRFeatureExtractor()(_wave(100), sampling_rate=8000)


def test_ids_are_characters() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer("It's  a", add_special_tokens=False)["input_ids"]
    assert len(tokenizer) == 31
    assert tokenizer.decode(ids) == "it's  a"
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_characters_without_an_id_are_named() -> None:
    assert unknown_characters("Héllo 3!3", character_tokenizer()) == ["é", "3", "!"]
    assert unknown_characters("", character_tokenizer()) == []
