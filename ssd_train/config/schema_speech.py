"""Typed configuration of speech recognition: model, data and recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from ssd_train.config.schema import DataConfig, ModelConfig


@dataclass(slots=True)
class SpeechModelConfig(ModelConfig):
    """Encoder with CTC head and decoder, trained from random weights (the language model may be pretrained)."""

    kind: str = "ctc_asr"
    """Always `ctc_asr`."""
    encoder_layers: int = 4
    """Fast-Conformer blocks."""
    encoder_size: int = 128
    """Width of the encoder."""
    encoder_heads: int = 4
    """Attention heads of the encoder; must divide `encoder_size`."""
    encoder_ffn: int = 256
    """Width inside the encoder's feed-forward modules."""
    conv_channels: int = 64
    """Channels of the subsampling convolutions."""
    conv_kernel: int = 9
    """Frames the convolution module sees; odd."""
    subsampling: int = 4
    """Feature frames (10 ms) per encoder frame: 2, 4 or 8; more than 4 is too coarse for characters."""
    mel_bins: int = 80
    """Mel filters; 40 are enough at 8 kHz."""
    dropout: float = 0.1
    """Dropout of encoder and decoder."""
    inter_ctc: list[int] | None = None
    """Layer counts after which an intermediate CTC loss is taken; null means after half the layers."""
    self_condition: bool = True
    """Feed what the CTC head reads there back into the encoder."""
    init_std: float = 0.05
    """Standard deviation of the initial weights."""
    decoder: str = "cross_attention"
    """cross_attention (small, from scratch), lm (projector and small causal LM from scratch) or hf (pretrained LM)."""
    decoder_layers: int = 4
    """Layers of the decoder (cross_attention, lm)."""
    decoder_size: int = 128
    """Width of the decoder (cross_attention, lm)."""
    decoder_heads: int = 4
    """Attention heads of the decoder; must divide `decoder_size`."""
    decoder_ffn: int = 256
    """Width inside the decoder's feed-forward modules."""
    condition_decoder: bool = True
    """Tell the decoder what the CTC head reads in each frame, and which token it has reached there."""
    decoder_name: str | None = None
    """Hub name or directory of the pretrained LM (`decoder=hf`); its tokenizer becomes the vocabulary."""
    lora_rank: int = 0
    """Rank of LoRA adapters in the pretrained LM, which stays frozen; 0 trains the projector only."""
    lora_alpha: int = 32
    """Scale of the adapters."""
    projector_stride: int = 2
    """Encoder frames stacked to one embedding of the LM."""
    projector_size: int = 256
    """Width inside the projector."""


@dataclass(slots=True)
class SpeechDataConfig(DataConfig):
    """What all speech sources share."""

    sampling_rate: int = 16000
    """Hz the model listens at; everything is resampled to it."""
    max_seconds: float = 20.0
    """Longest training utterance; longer ones count as unusable."""
    batch_seconds: float = 40.0
    """Seconds of padded audio in one batch; `train.batch_size` counts such batches."""
    batch_rows: int = 64
    """Most utterances in one batch."""


@dataclass(slots=True)
class TTSSpeechConfig(SpeechDataConfig):
    """Synthesised sentences of a small closed domain; needs `py-nanotts`, and takes espeak-ng where it is installed."""

    kind: str = "tts_speech"
    """Always `tts_speech`."""
    utterances: int = 2400
    """Training sentences."""
    heldout_utterances: int = 80
    """Sentences of each held-out set."""
    voices: list[str] = field(default_factory=lambda: ["nanotts:en-US"])
    """Training voices, ENGINE:VOICE."""
    optional_voices: list[str] = field(default_factory=list)
    """Training voices used only where their engine is installed."""
    optional_share: float = 0.5
    """Share of training utterances those voices speak, where there are any."""
    heldout_voice: str = "nanotts:en-GB"
    """A voice no training utterance has."""
    speed: list[float] = field(default_factory=lambda: [0.85, 1.25])
    """Range of speaking rates."""
    pitch: list[float] = field(default_factory=lambda: [0.75, 1.35])
    """Range of fundamental frequencies."""
    tract: list[float] = field(default_factory=lambda: [0.88, 1.15])
    """Range of formant shifts of training voices."""
    noise_share: float = 0.5
    """Share of training utterances with noise."""
    snr: list[float] = field(default_factory=lambda: [8.0, 30.0])
    """Range of signal-to-noise ratios in dB."""


@dataclass(slots=True)
class ManifestSpeechConfig(SpeechDataConfig):
    """Recordings listed in a JSONL file, one object a line: `audio`, `text`, and if known `speaker` and `split`."""

    kind: str = "manifest"
    """Always `manifest`."""
    path: str = MISSING
    """The manifest."""
    join_clips: list[int] | None = None
    """Least and most clips of one speaker strung together to an utterance; null takes clips as they are."""
    gap_seconds: list[float] = field(default_factory=lambda: [0.04, 0.2])
    """Range of silences between strung clips."""
    strings: int = 24000
    """Training strings, made on the fly."""
    heldout_strings: int = 150
    """Strings of each held-out set."""
    leave_out: str | None = None
    """A speaker kept out of training and measured as `test_speaker`."""


@dataclass(slots=True)
class AsteriskSpeechConfig(SpeechDataConfig):
    """Prompts of Debian's asterisk-core-sounds packages, unpacked into a directory."""

    kind: str = "asterisk"
    """Always `asterisk`."""
    path: str = MISSING
    """Directory the packages were unpacked into."""
    language: str = "en"
    """Language of the package."""
    test_share: float = 0.15
    """Share of texts held out as `test`."""


@dataclass(slots=True)
class HubSpeechConfig(SpeechDataConfig):
    """A speech dataset of the Hugging Face hub, in the form of LibriSpeech."""

    kind: str = "hub_speech"
    """Always `hub_speech`."""
    name: str = MISSING
    """Dataset name on the hub."""
    subset: str | None = None
    """Configuration of the dataset."""
    revision: str | None = None
    """Branch, tag or commit of the dataset on the hub."""
    split: str = "train"
    """Split to train on."""
    validation_split: str | None = None
    """Split for `dev`; null takes `validation_share` of the training split."""
    test_split: str | None = None
    """Split for `test`; null measures on `dev`."""
    audio_field: str = "audio"
    """Column that holds the audio."""
    text_field: str = "text"
    """Column that holds the text."""
    streaming: bool = False
    """Read without downloading everything first."""
    max_utterances: int = 0
    """Read at most this many training utterances; 0 reads all."""
    heldout_utterances: int = 200
    """Utterances of each held-out set."""
