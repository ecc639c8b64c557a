"""Sound to log-mel features, text to ids and back: one processor, saved beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import BatchFeature, PreTrainedTokenizerFast, ProcessorMixin
from transformers.audio_utils import mel_filter_bank
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor

from ssd_infer.engine.kernels.products import product

Samples = NDArray[np.float32]
"""Mono audio, `(N,)`, within [-1, 1]."""

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("<blank>", "<s>", "</s>")
"""Ids 0, 1 and 2 of the character vocabulary; the blank also pads."""

_FLOOR = 1e-6


class ASRFeatureExtractor(SequenceFeatureExtractor):
    """Log-mel filter banks, 25 ms windows every 10 ms, each utterance normalised per mel bin by itself."""

    model_input_names = ["input_features", "feature_lengths"]  # noqa: RUF012 - transformers declares it a plain list

    def __init__(
        self, feature_size: int = 80, sampling_rate: int = 16000, padding_value: float = 0.0, **kwargs: Any
    ) -> None:
        """Prepare filters for `sampling_rate`; window and hop follow from it.

        Each filter has two equal weights a frequency: real and imaginary part enter by their squares.
        """
        super().__init__(
            feature_size=feature_size, sampling_rate=sampling_rate, padding_value=padding_value, **kwargs
        )
        self.hop_length, self.win_length = sampling_rate // 100, sampling_rate // 40
        self.n_fft = 1 << (self.win_length - 1).bit_length()
        filters = torch.from_numpy(
            mel_filter_bank(
                num_frequency_bins=self.n_fft // 2 + 1,
                num_mel_filters=feature_size,
                min_frequency=self.band[0],
                max_frequency=self.band[1],
                sampling_rate=sampling_rate,
                norm=None,
                mel_scale="htk",
            ).astype(np.float32)
        )
        self._filters = filters.T.repeat_interleave(2, dim=1).contiguous()
        self._window = torch.hann_window(self.win_length, periodic=False)

    @property
    def band(self) -> tuple[float, float]:
        """Lowest and highest frequency, in Hz, of the mel filters."""
        return 20.0, self.sampling_rate / 2

    def extract(self, samples: Samples | Tensor) -> Tensor:
        """Return normalised features float32 `(F, mel)` of mono `samples` `(N,)`; F = 1 + N // hop."""
        wave = torch.as_tensor(samples, dtype=torch.float32)
        spectrum = torch.stft(
            wave,
            self.n_fft,
            self.hop_length,
            self.win_length,
            self._window,
            center=True,
            pad_mode="constant",
            return_complex=True,
        )
        squares = torch.view_as_real(spectrum.T).flatten(1).square()
        log_mel = (product(squares, self._filters) + _FLOOR).log()
        centred = log_mel - log_mel.mean(dim=0)
        return centred / (centred.square().mean(dim=0).sqrt() + 0.1)

    def __call__(
        self,
        raw_speech: Samples | Sequence[Samples],
        sampling_rate: int | None = None,
        return_tensors: str | None = "pt",
        **_: Any,
    ) -> BatchFeature:
        """Return right-padded `input_features` `(B, F, mel)` and `feature_lengths` `(B,)`.

        Raises ValueError for another `sampling_rate` than the extractor's: resample first.
        """
        if sampling_rate is not None and sampling_rate != self.sampling_rate:
            raise ValueError(
                f"sampling_rate: must be {self.sampling_rate} (got {sampling_rate}); resample the audio first"
            )
        single = isinstance(raw_speech, np.ndarray | Tensor) and raw_speech.ndim == 1
        waves: Any = [raw_speech] if single else raw_speech
        data = pad_features([self.extract(wave) for wave in waves], self.padding_value)
        return BatchFeature(data, tensor_type=return_tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return what is saved: numbers only."""
        return {name: value for name, value in super().to_dict().items() if not name.startswith("_")}


def pad_features(features: Sequence[Tensor], value: float = 0.0) -> dict[str, Tensor]:
    """Stack features `(F_b, mel)` into `input_features` `(B, F, mel)` with `feature_lengths` int64 `(B,)`."""
    padded = torch.nn.utils.rnn.pad_sequence(list(features), batch_first=True, padding_value=value)
    return {"input_features": padded, "feature_lengths": torch.tensor([len(item) for item in features])}


class CTCASRProcessor(ProcessorMixin):
    """Feature extractor and tokenizer as one; `processor(audio=…, text=…)`."""

    def __init__(self, feature_extractor: Any, tokenizer: Any) -> None:
        """Join both."""
        super().__init__(feature_extractor, tokenizer)  # type: ignore[no-untyped-call]

    @property
    def sampling_rate(self) -> int:
        """Sampling rate, in Hz, the model listens at."""
        return int(self.feature_extractor.sampling_rate)

    def __call__(
        self,
        audio: Samples | Sequence[Samples] | None = None,
        text: str | Sequence[str] | None = None,
        sampling_rate: int | None = None,
        return_tensors: str | None = "pt",
        **kwargs: Any,
    ) -> BatchFeature:
        """Return features of `audio` and, as `labels`, ids of `text` (lists, without special tokens)."""
        data = BatchFeature()
        if audio is not None:
            data.update(
                self.feature_extractor(audio, sampling_rate=sampling_rate, return_tensors=return_tensors)
            )
        if text is not None:
            data["labels"] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return data

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the text of token ids, special tokens left out."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text.strip()

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        """Return the text of each row."""
        return [self.decode(row) for row in rows]


def character_tokenizer(letters: str = LETTERS) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one id a character, lower-casing, with blank 0 (which also pads), BOS 1 and EOS 2.

    A character outside `letters` becomes the blank: check texts with `unknown_characters` before they are labels.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[0]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        unk_token=SPECIAL[0],
        clean_up_tokenization_spaces=False,
    )


def unknown_characters(text: str, tokenizer: Any) -> list[str]:
    """Return the characters of `text`, lower-cased, that have no id of their own, each once, in order."""
    ids = tokenizer(list(text), add_special_tokens=False)["input_ids"] if text else []
    unknown = tokenizer.unk_token_id
    return list(
        dict.fromkeys(
            char for char, row in zip(text, ids, strict=True) if unknown is not None and unknown in row
        )
    )


def load_processor(path: str | Path) -> CTCASRProcessor:
    """Load the processor saved in the checkpoint directory `path`."""
    from transformers import AutoFeatureExtractor, AutoTokenizer

    return CTCASRProcessor(
        AutoFeatureExtractor.from_pretrained(str(path)), AutoTokenizer.from_pretrained(str(path))
    )
