"""Rules of speech recognition: model, data and recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_infer.config.checks import Checks
from ssd_train.config.schema import Root
from ssd_train.config.schema_speech import (
    AsteriskSpeechConfig,
    HubSpeechConfig,
    ManifestSpeechConfig,
    SpeechDataConfig,
    SpeechModelConfig,
    TTSSpeechConfig,
)

DECODER_FORMS = ("cross_attention", "lm", "hf")
RATES = (8000, 48000)
_SIZES = (
    *("encoder_layers", "encoder_size", "encoder_heads", "encoder_ffn", "conv_channels", "mel_bins"),
    *("decoder_layers", "decoder_size", "decoder_heads", "decoder_ffn", "projector_stride", "projector_size"),
)


def check_speech_model(model: SpeechModelConfig, checks: Checks) -> None:
    """Check sizes, the divisions of the attention heads and the form of the decoder."""
    positive = [checks.at_least(key, getattr(model, key), 1) for key in _SIZES]
    rule = "must be 2, 4 or 8"
    checks.require(
        model.subsampling in (2, 4, 8), "subsampling", rule, model.subsampling, "try 4 for characters"
    )
    checks.require(model.conv_kernel % 2 == 1, "conv_kernel", "must be odd", model.conv_kernel, "try 9")
    checks.within("dropout", model.dropout, 0, 1, open_end=True)
    checks.above_zero("init_std", model.init_std)
    for part in ("encoder", "decoder") if all(positive) else ():
        width, heads = getattr(model, f"{part}_size"), getattr(model, f"{part}_heads")
        rule = f"must divide model.{part}_size, {width}, into even parts"
        checks.require(width % (2 * heads) == 0, f"{part}_heads", rule, heads)
    for layer in model.inter_ctc or ():
        inside = 1 <= layer < model.encoder_layers
        rule = f"must lie between 1 and {model.encoder_layers - 1}, below the last encoder layer"
        checks.require(inside, "inter_ctc", rule, layer)
    _check_decoder(model, checks)


def _check_decoder(model: SpeechModelConfig, checks: Checks) -> None:
    checks.choice("decoder", model.decoder, DECODER_FORMS)
    checks.at_least("lora_rank", model.lora_rank, 0)
    checks.at_least("lora_alpha", model.lora_alpha, 1)
    named = model.decoder != "hf" or bool(model.decoder_name)
    rule = "must name the language model of decoder=hf"
    checks.require(named, "decoder_name", rule, model.decoder_name, "a hub name or a directory")
    pretrained = model.decoder == "hf" or model.lora_rank == 0
    checks.require(pretrained, "lora_rank", "needs decoder=hf", model.lora_rank, "try lora_rank=0")


def check_speech_data(data: SpeechDataConfig, checks: Checks) -> None:
    """Check a speech source, first what all kinds share."""
    checks.within("sampling_rate", data.sampling_rate, *RATES)
    even = data.sampling_rate % 200 == 0
    checks.require(
        even, "sampling_rate", "must be a multiple of 200 Hz", data.sampling_rate, "try 16000 or 8000"
    )
    for key in ("max_seconds", "batch_seconds"):
        checks.above_zero(key, getattr(data, key))
    checks.at_least("batch_rows", data.batch_rows, 1)
    if isinstance(data, TTSSpeechConfig):
        _check_tts(data, checks)
    elif isinstance(data, ManifestSpeechConfig):
        _check_manifest(data, checks)
    elif isinstance(data, AsteriskSpeechConfig):
        checks.within("test_share", data.test_share, 0, 1, open_end=True)
        exists = Path(data.path).expanduser().is_dir()
        checks.require(exists, "path", "is no directory", data.path, "unpack the packages with dpkg-deb -x")
    elif isinstance(data, HubSpeechConfig):
        checks.require(bool(data.name), "name", "must name a dataset", data.name)
        checks.at_least("max_utterances", data.max_utterances, 0)
        checks.at_least("heldout_utterances", data.heldout_utterances, 1)


def _check_tts(data: TTSSpeechConfig, checks: Checks) -> None:
    checks.at_least("utterances", data.utterances, 1)
    checks.at_least("heldout_utterances", data.heldout_utterances, 1)
    for key in ("noise_share", "optional_share"):
        checks.within(key, getattr(data, key), 0, 1)
    for key in ("speed", "pitch", "tract"):
        _check_range(key, getattr(data, key), checks, above=0.0)
    _check_range("snr", data.snr, checks)
    checks.require(len(data.voices) > 0, "voices", "must name at least one voice", data.voices)
    heard = data.heldout_voice in (*data.voices, *data.optional_voices)
    checks.require(not heard, "heldout_voice", "must not be a training voice", data.heldout_voice)


def _check_manifest(data: ManifestSpeechConfig, checks: Checks) -> None:
    exists = Path(data.path).expanduser().is_file()
    checks.require(exists, "path", "is no file", data.path, f"looked from {Path.cwd()}")
    _check_range("gap_seconds", data.gap_seconds, checks, above=-1e-9)
    checks.at_least("strings", data.strings, 1)
    checks.at_least("heldout_strings", data.heldout_strings, 1)
    if data.join_clips is not None:
        _check_range("join_clips", data.join_clips, checks, above=0.0)


def _check_range(key: str, value: Sequence[float], checks: Checks, above: float = float("-inf")) -> None:
    good = len(value) == 2 and above < value[0] <= value[1]
    low = f" above {max(above, 0):g}" if above > float("-inf") else ""
    checks.require(good, key, f"must be [least, most]{low}", value)


def check_fit(cfg: Root, checks: Checks, *, speech: bool) -> None:
    """Check that a recipe for speech, a speech model and speech data come together."""
    parts: tuple[tuple[str, object, type, str], ...] = (
        ("model", cfg.model, SpeechModelConfig, "model=ctc_asr"),
        ("data", cfg.data, SpeechDataConfig, "data=tts_speech, manifest, asterisk or hub_speech"),
    )
    for key, value, wanted, remedy in parts:
        kind = getattr(value, "kind", "")
        if speech:
            fits = isinstance(value, wanted)
            checks.require(
                fits, f"{key}.kind", f"must be speech for recipe {cfg.recipe.kind}", kind, f"use {remedy}"
            )
        else:
            fits = not isinstance(value, wanted)
            checks.require(
                fits, f"{key}.kind", f"is for recipe asr_ctc, not {cfg.recipe.kind}", kind, "+recipe=asr_ctc"
            )
