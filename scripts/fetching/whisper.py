"""A CTranslate2 Whisper (`model.bin`, config.json, tokenizer.json, vocabulary.txt) as a plain checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from scripts.fetching import ctranslate2
from scripts.fetching.whisper_tokens import END, START, build_tokenizer, generation_settings, read_words
from scripts.fetching.whisper_weights import REVISION, convert
from ssd_infer.errors import CheckpointError

SPEAKER = "the result is checked on sentences that this package speaks"
SENTENCES = (
    "The weather is very nice today, so the children play in the garden.",
    "Please send the report to the office before the meeting on Monday.",
    "She bought three apples and a loaf of bread at the market.",
)
ALLOWED = 2
"""Words of SENTENCES that may come back otherwise: a small model may mishear a word, a broken one hears none."""


def make_checkpoint(folder: Path, out: Path) -> None:
    """Convert, check on spoken sentences, and write the checkpoint.

    Raises CheckpointError for files that are damaged or no Whisper, and for a result that does not hear the sentences.
    """
    model, processor = build(folder)
    check(model, processor)
    model.save_pretrained(out)
    processor.save_pretrained(out)


def build(folder: Path) -> tuple[Any, Any]:
    """Return the `WhisperForConditionalGeneration`, float32, in evaluation mode, and its `WhisperProcessor`."""
    import transformers

    dimensions, state = convert(ctranslate2.read(folder / "model.bin", "WhisperSpec", REVISION))
    words = read_words(folder / "vocabulary.txt", dimensions["vocab_size"])
    longest = dimensions["max_target_positions"]
    tokenizer = build_tokenizer(folder / "tokenizer.json", words, longest)
    settings = generation_settings(folder / "config.json", words, longest)
    end = words.index(END)
    config = transformers.WhisperConfig(
        **dimensions,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=words.index(START),
        begin_suppress_tokens=None,
        dtype="float32",
    )
    _check_heads(settings["alignment_heads"], dimensions)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing != ["proj_out.weight"] or unexpected:
        raise CheckpointError(
            f"model.bin: weights do not fit transformers' Whisper ({missing[:3]}, {unexpected[:3]})"
        )
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(**settings)
    listener = transformers.WhisperFeatureExtractor(feature_size=dimensions["num_mel_bins"])
    return model, transformers.WhisperProcessor(listener, tokenizer)


def _check_heads(heads: list[list[int]], dimensions: dict[str, Any]) -> None:
    layers, count = dimensions["decoder_layers"], dimensions["decoder_attention_heads"]
    if any(layer >= layers or head >= count for layer, head in heads):
        raise CheckpointError(f"config.json: alignment_heads names heads beyond {layers} layers of {count}")


def check(model: Any, processor: Any) -> None:
    """Raise CheckpointError unless the model hears what a synthesiser says."""
    from py_nanotts import NanoTTS

    wrong, heard = 0, []
    for sentence in SENTENCES:
        pcm = NanoTTS().speak(sentence, voice="en-GB")
        samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
        heard.append(transcribe(model, processor, samples))
        wrong += len(_words(sentence) ^ _words(heard[-1]))
    if wrong > ALLOWED:
        raise CheckpointError(
            f"the converted model mishears spoken sentences: {heard}; expected {list(SENTENCES)}"
        )


def transcribe(model: Any, processor: Any, samples: np.ndarray) -> str:
    """Return the text of mono samples at 16 kHz, at most 30 s of them, by greedy decoding."""
    import torch

    features = processor(samples, sampling_rate=16000, return_tensors="pt").input_features
    language = {"language": "en"} if model.generation_config.is_multilingual else {}
    with torch.inference_mode():
        ids = model.generate(features, do_sample=False, num_beams=1, **language)
    text: str = processor.batch_decode(ids, skip_special_tokens=True)[0]
    return text.strip()


def _words(text: str) -> set[str]:
    """Return the words of a sentence; digits count as the words that are spoken for them."""
    return set(re.findall(r"[a-z']+", text.lower().replace("3", "three")))
