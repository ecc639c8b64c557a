"""A Whisper of transformers, written as CTranslate2 keeps it, comes back as it was; what is no Whisper is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoProcessor, WhisperConfig, WhisperForConditionalGeneration

from scripts.fetching import whisper
from scripts.fetching.ctranslate2 import Variables
from scripts.fetching.whisper_tokens import ENGLISH_ONLY, generation_settings
from scripts.fetching.whisper_weights import convert
from ssd_infer.errors import CheckpointError
from tests.scripts.ctranslate2_files import TIED, encode, whisper_variables

SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|haw|>", "<|translate|>", "<|transcribe|>"]
SPECIAL += ["<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"]
LETTERS = [*"!abcdehlorw", "Ġ", "he", "ll", "hell", "hello"]
TIMES = [f"<|{0.02 * count:.2f}|>" for count in range(5)]
WORDS = LETTERS + SPECIAL + TIMES
MERGES = ["h e", "l l", "he ll", "hell o"]
ID = {word: index for index, word in enumerate(WORDS)}


def _model() -> WhisperForConditionalGeneration:
    """Return a random Whisper of different sizes everywhere, whose weights are exact in float16."""
    torch.manual_seed(3)
    config = WhisperConfig(
        vocab_size=len(WORDS),
        d_model=16,
        num_mel_bins=8,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=40,
        max_source_positions=1500,
        max_target_positions=20,
        pad_token_id=ID["<|endoftext|>"],
        bos_token_id=ID["<|endoftext|>"],
        eos_token_id=ID["<|endoftext|>"],
        decoder_start_token_id=ID["<|startoftranscript|>"],
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((torch.randn_like(weight) * 0.3).half())
    return model


def _tokenizer() -> dict[str, Any]:
    added = [{"id": ID[name], "content": name, "special": True} for name in SPECIAL]
    return {"model": {"vocab": {name: ID[name] for name in LETTERS}, "merges": MERGES}, "added_tokens": added}


def _settings() -> dict[str, Any]:
    return {
        "suppress_ids": [ID["!"], ID["<|startoflm|>"]],
        "suppress_ids_begin": [ID["Ġ"], ID["<|endoftext|>"]],
        "alignment_heads": [[1, 3], [2, 0]],
        "lang_ids": [ID["<|en|>"], ID["<|haw|>"]],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the four files of a CTranslate2 Whisper."""
    there = tmp_path / "ctranslate2"
    there.mkdir()
    (there / "model.bin").write_bytes(encode(whisper_variables(_model())))
    (there / "vocabulary.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (there / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    (there / "config.json").write_text(json.dumps(_settings()))
    return there


def test_the_converted_model_computes_what_the_original_does(folder: Path, tmp_path: Path) -> None:
    original = _model()
    model, processor = whisper.build(folder)
    model.save_pretrained(tmp_path / "out")
    processor.save_pretrained(tmp_path / "out")
    loaded = WhisperForConditionalGeneration.from_pretrained(tmp_path / "out")
    state = original.state_dict()
    assert loaded.dtype == torch.float32
    assert all(tensor.equal(state[name]) for name, tensor in loaded.state_dict().items())
    features, tokens = torch.randn(2, 8, 3000), torch.tensor([[ID["<|startoftranscript|>"], 3, 4]] * 2)
    with torch.inference_mode():
        expected = original(input_features=features, decoder_input_ids=tokens).logits
        assert loaded(input_features=features, decoder_input_ids=tokens).logits.equal(expected)


def test_the_directory_transcribes_by_itself(folder: Path, tmp_path: Path) -> None:
    model, processor = whisper.build(folder)
    model.save_pretrained(tmp_path / "out")
    processor.save_pretrained(tmp_path / "out")
    loaded = WhisperForConditionalGeneration.from_pretrained(tmp_path / "out")
    again = AutoProcessor.from_pretrained(tmp_path / "out")
    noise = np.random.default_rng(0).normal(size=16000).astype(np.float32)
    features = again(noise, sampling_rate=16000, return_tensors="pt").input_features
    assert features.shape == (1, 8, 3000)
    ids = loaded.generate(features, max_new_tokens=8, return_timestamps=False)[0].tolist()
    ids = ids[ids.index(ID["<|notimestamps|>"]) + 1 :] if ID["<|notimestamps|>"] in ids else ids
    assert not {ID["!"], ID["<|startoflm|>"]} & set(ids)
    spoken = [ID["hello"], ID["<|0.04|>"], ID["<|endoftext|>"]]
    assert again.tokenizer.decode(spoken, skip_special_tokens=True) == "hello"
    assert again.tokenizer.decode(spoken, decode_with_timestamps=True) == "hello<|0.04|><|endoftext|>"
    assert again.tokenizer("hello").input_ids[-2:] == [ID["hello"], ID["<|endoftext|>"]]
    assert max(again.tokenizer.all_special_ids) + 1 == ID["<|0.00|>"]


def test_the_rules_of_generation_are_carried_over(folder: Path) -> None:
    model, _ = whisper.build(folder)
    rules = model.generation_config
    assert rules.suppress_tokens == _settings()["suppress_ids"]
    assert rules.begin_suppress_tokens == _settings()["suppress_ids_begin"]
    assert rules.alignment_heads == [[1, 3], [2, 0]]
    assert rules.lang_to_id == {"<|en|>": ID["<|en|>"], "<|haw|>": ID["<|haw|>"]}
    assert rules.task_to_id == {"transcribe": ID["<|transcribe|>"], "translate": ID["<|translate|>"]}
    assert (rules.task, rules.is_multilingual, rules.return_timestamps) == ("transcribe", True, False)
    assert rules.decoder_start_token_id == ID["<|startoftranscript|>"]
    assert rules.eos_token_id == rules.pad_token_id == ID["<|endoftext|>"]
    assert rules.no_timestamps_token_id == ID["<|notimestamps|>"]
    assert rules.prev_sot_token_id == ID["<|startofprev|>"]
    assert rules.max_length == 20


def test_a_model_of_english_alone_gets_no_language_and_no_task(folder: Path) -> None:
    words = [f"w{index}" for index in range(ENGLISH_ONLY - len(SPECIAL))] + SPECIAL
    rules = generation_settings(folder / "config.json", words, 448)
    assert rules["is_multilingual"] is False
    assert not {"task", "lang_to_id", "task_to_id"} & set(rules)


def test_a_first_merge_that_a_file_lost_is_found_again(folder: Path) -> None:
    tokenizer = _tokenizer()
    tokenizer["model"]["merges"] = MERGES[1:]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _, processor = whisper.build(folder)
    assert processor.tokenizer("hello", add_special_tokens=False).input_ids == [ID["hello"]]


@pytest.mark.parametrize(
    "merges", [MERGES[:2], MERGES[:3], [*MERGES, "e h"], [*MERGES, "h e"], [*MERGES[:3], "hel lo"]]
)
def test_merges_that_do_not_fit_the_vocabulary_are_refused(folder: Path, merges: list[str]) -> None:
    tokenizer = _tokenizer()
    tokenizer["model"]["merges"] = merges
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="vocabulary and merges do not fit together"):
        whisper.build(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_floats_are_widened(dtype: torch.dtype) -> None:
    _, state = convert(Variables(whisper_variables(_model(), dtype), dict(TIED)))
    expected = _model().model.decoder.layers[2].encoder_attn.v_proj.weight.to(dtype).float()
    assert state["model.decoder.layers.2.encoder_attn.v_proj.weight"].equal(expected)


def _biased(found: dict[str, Tensor]) -> None:
    found["encoder/layer_1/self_attention/linear_0/bias"][20] = 0.5


def _rename(found: dict[str, Tensor], old: str, new: str) -> None:
    found[new] = found.pop(old)


DAMAGES: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (
        lambda v: v.pop("decoder/layer_1/ffn/linear_1/bias"),
        "decoder/layer_1/ffn/linear_1/bias is missing",
    ),
    "gap": (
        lambda v: [
            _rename(v, name, name.replace("layer_1/", "layer_7/"))
            for name in list(v)
            if "encoder/layer_1/" in name
        ],
        "encoder/layer_1/self_attention/layer_norm/gamma is missing",
    ),
    "foreign": (lambda v: v.update({"decoder/rotary": torch.ones(2)}), "1 variables belong to no Whisper"),
    "key bias": (_biased, "encoder/layer_1/self_attention/linear_0 gives the keys a bias"),
    "activation": (
        lambda v: v.update({"decoder/activation": torch.tensor(0, dtype=torch.int8)}),
        "decoder/activation is 0, transformers' Whisper has 3",
    ),
    "heads": (
        lambda v: v.update({"encoder/num_heads": torch.tensor(3, dtype=torch.int16)}),
        "a width of 16 cannot be split",
    ),
    "no heads": (
        lambda v: v.update({"decoder/num_heads": torch.tensor(0, dtype=torch.int16)}),
        "a width of 16 cannot be split",
    ),
    "vector for number": (
        lambda v: v.update({"decoder/num_heads": torch.ones(2, dtype=torch.int16)}),
        "decoder/num_heads should be one whole number",
    ),
    "quantised": (
        lambda v: v.update({"encoder/conv2/weight": torch.ones(16, 16, 3, dtype=torch.int8)}),
        r"encoder/conv2/weight is quantised \(torch\.int8\)",
    ),
    "shape": (
        lambda v: v.update({"encoder/conv2/weight": torch.ones(16, 15, 3)}),
        r"the shape \[16, 15, 3\], expected \[16, 16, 3\]",
    ),
    "fused": (
        lambda v: v.update({"decoder/layer_0/attention/linear_1/weight": torch.ones(48, 16)}),
        r"decoder/layer_0/attention/linear_1/weight has the shape \[48, 16\], expected \[32, 16\]",
    ),
    "not finite": (
        lambda v: v["decoder/embeddings/weight"].fill_(float("inf")),
        "decoder/embeddings/weight holds values that are not finite",
    ),
    "no decoder": (
        lambda v: [v.pop(name) for name in list(v) if name.startswith("decoder/layer_")],
        "the decoder has no layers",
    ),
    "no cross-attention": (
        lambda v: [v.pop(name) for name in list(v) if name.startswith("decoder/layer_1/attention/")],
        "do not fit transformers' Whisper",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_whisper_is_refused(folder: Path, damage: str) -> None:
    variables = whisper_variables(_model())
    change, said = DAMAGES[damage]
    change(variables)
    (folder / "model.bin").write_bytes(encode(variables))
    with pytest.raises(CheckpointError, match=said):
        whisper.build(folder)


def test_an_output_layer_of_its_own_is_refused(folder: Path) -> None:
    (folder / "model.bin").write_bytes(encode(whisper_variables(_model()), {}))
    with pytest.raises(CheckpointError, match="expected a tied output layer"):
        whisper.build(folder)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocabulary.txt", "\n".join(WORDS[:-1]), "holds 30 tokens, the model has 31"),
        ("vocabulary.txt", "\n".join([*WORDS[:-1], "x"]), "the timestamps that should follow"),
        (
            "vocabulary.txt",
            "\n".join([WORDS[1], WORDS[0], *WORDS[2:]]),
            r"differs from the vocabulary \(at 0\)",
        ),
        ("vocabulary.txt", b"\xff" * 90, r"vocabulary\.txt: cannot be read"),
        ("vocabulary.txt", "\n".join(WORDS).replace("<|startofprev|>", "z"), "differs from the vocabulary"),
        ("tokenizer.json", "{", r"tokenizer\.json: cannot be read"),
        ("tokenizer.json", "[]", r"tokenizer\.json: holds no object"),
        ("tokenizer.json", "{}", r"tokenizer\.json: is not the tokenizer of a Whisper"),
        ("tokenizer.json", json.dumps(_tokenizer() | {"added_tokens": []}), "differs from the vocabulary"),
        ("config.json", "{}", "config.json: suppress_ids should list ids"),
        ("config.json", json.dumps(_settings() | {"suppress_ids": [99]}), "suppress_ids should list ids"),
        (
            "config.json",
            json.dumps(_settings() | {"suppress_ids_begin": [True]}),
            "suppress_ids_begin should list",
        ),
        ("config.json", json.dumps(_settings() | {"alignment_heads": [[1]]}), "should list pairs"),
        ("config.json", json.dumps(_settings() | {"alignment_heads": [[3, 0]]}), "beyond 3 layers of 4"),
    ],
)
def test_files_beside_the_weights_are_checked(
    folder: Path, name: str, content: str | bytes, said: str
) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=said):
        whisper.build(folder)


def test_a_model_that_hears_other_words_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = whisper.build(folder)
    heard = list(whisper.SENTENCES)
    monkeypatch.setattr(whisper, "transcribe", lambda *_: heard.pop(0))
    whisper.check(model, processor)
    heard[:] = [sentence.replace("the", "a") for sentence in whisper.SENTENCES]
    with pytest.raises(CheckpointError, match="mishears spoken sentences"):
        whisper.check(model, processor)


def test_random_weights_do_not_pass_the_check(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="mishears spoken sentences"):
        whisper.make_checkpoint(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
