"""Quantised weights go through the same view and decode as `generate` does, or are refused in one line.

A library that is not installed here is named by the test that needs it, which is then skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import import_utils

import ssd_infer
from ssd_infer.errors import CheckpointError, ConfigError, SSDError
from tests.checkpoint.test_loading import ROWS, check_exact, greedy
from tests.conftest import build_model

SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
"""Wide enough for groups of 32 weights."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows of weights can be quantised in groups."""
    folder = tmp_path_factory.mktemp("checkpoint")
    build_model(**SHAPE).save_pretrained(folder)
    return folder


def needs(library: str) -> Any:
    """Import `library`, or skip the test that needs it."""
    return pytest.importorskip(library, reason=f"{library} is not installed")


TORCHAO: dict[str, dict[str, Any]] = {
    "int8": {"quant_type": "Int8WeightOnlyConfig"},
    "int4": {"quant_type": "IntxWeightOnlyConfig", "quant_type_kwargs": {"weight_dtype": torch.int4}},
}


@pytest.mark.parametrize("kind", TORCHAO)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torchao_weight_only_decodes_exactly(checkpoint: Path, kind: str, dtype: str) -> None:
    needs("torchao")
    config = {"quant_method": "torchao", **TORCHAO[kind]}
    loaded = ssd_infer.load(checkpoint, dtype=dtype, quantization_config=config)
    expected = greedy(loaded.model)
    if dtype == "float32":
        assert expected != greedy(build_model(**SHAPE)), "quantising changed nothing"
        check_exact(loaded, expected)
        return
    params = {"exit_layer": 3, "gamma": 4}
    out = ssd_infer.generate(loaded, ROWS[:1], draft="early_exit", draft_params=params, max_new_tokens=8)
    assert out.stats.total.drafted


@pytest.mark.parametrize("draft", ["early_exit", "skip_set", "early_exit+del", "swift"])
def test_auto_settles_on_quantised_weights(checkpoint: Path, draft: str) -> None:
    needs("torchao")
    config = {"quant_method": "torchao", **TORCHAO["int8"]}
    loaded = ssd_infer.load(checkpoint, dtype="float32", quantization_config=config)
    out = ssd_infer.generate(loaded, ROWS[:1], draft=draft, max_new_tokens=16)
    assert out.sequences == greedy(loaded.model)[:1]


def test_a_kind_torchao_does_not_have_is_refused_with_those_it_has(checkpoint: Path) -> None:
    needs("torchao")
    config = {"quant_method": "torchao", "quant_type": "int8_weight_only"}
    with pytest.raises(ConfigError, match=r"quantization_config: cannot be made .*Int8WeightOnlyConfig"):
        ssd_infer.load(checkpoint, quantization_config=config)


def test_int4_that_needs_a_kernel_of_another_device_is_refused_in_one_line(checkpoint: Path) -> None:
    needs("torchao")
    config = {
        "quant_method": "torchao",
        "quant_type": "Int4WeightOnlyConfig",
        "quant_type_kwargs": {"group_size": 32},
    }
    _exact_or_one_line(
        lambda: ssd_infer.load(checkpoint, dtype="bfloat16", device="cpu", quantization_config=config)
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_bitsandbytes_on_a_cpu_is_refused_in_one_line(checkpoint: Path, bits: int) -> None:
    """Its products depend on how many rows they have, so a block is another function than its tokens one by one."""
    config = {f"load_in_{bits}bit": True}
    said = _exact_or_one_line(lambda: ssd_infer.load(checkpoint, device="cpu", quantization_config=config))
    assert said, "it was exact: say so in docs/families.md"


def _exact_or_one_line(load: Callable[[], Any]) -> str:
    """Load and decode; return what was said where either was refused, nothing where the text is `generate`'s."""
    try:
        loaded = load()
        found = ssd_infer.generate(loaded, ROWS, max_new_tokens=16).sequences
    except SSDError as refusal:
        said = str(refusal)
    else:
        said = ""
        assert found == greedy(loaded.model)
    assert "\n" not in said
    return said


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let transformers find no optional package."""

    def forget() -> None:
        for name in dir(import_utils):
            if name.startswith("is_") and hasattr(getattr(import_utils, name), "cache_clear"):
                getattr(import_utils, name).cache_clear()

    monkeypatch.setattr(import_utils, "_is_package_available", lambda *_a, **_k: (False, "N/A"))
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("method", ["torchao", "compressed-tensors", "hqq", "quanto", "gptq", "awq"])
def test_a_method_whose_library_is_missing_says_so(checkpoint: Path, method: str) -> None:
    config = {"quant_method": method, "bits": 4, "quant_type": {"default": {}}}
    with pytest.raises(SSDError) as caught:
        ssd_infer.load(checkpoint, quantization_config=config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("form", "bits"), [("pack-quantized", 4), ("int-quantized", 8)])
def test_compressed_tensors_decode_exactly(tmp_path: Path, form: str, bits: int) -> None:
    needs("compressed_tensors")
    _write_compressed(tmp_path, form, bits)
    loaded = ssd_infer.load(tmp_path)
    expected = greedy(loaded.model)
    assert expected != greedy(build_model(**SHAPE)), "quantising changed nothing"
    check_exact(loaded, expected)


def _write_compressed(folder: Path, form: str, bits: int) -> None:
    """Save a model whose linear layers are quantised by output channel."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    model: Any = build_model(**SHAPE)
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    config = QuantizationConfig(
        config_groups={"all": scheme}, ignore=["lm_head"], format=form, quantization_status="frozen"
    )
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            largest = module.weight.abs().amax(1, keepdim=True)
            module.weight_scale.data = largest / (2 ** (bits - 1) - 1)
    compressor = ModelCompressor.from_pretrained_model(model, quantization_format=form)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    stored = json.loads((folder / "config.json").read_text())
    assert stored["quantization_config"]["format"] == form


@pytest.fixture(scope="module")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but a GGUF file with 8-bit weights."""
    gguf = needs("gguf")
    folder = tmp_path_factory.mktemp("gguf")
    _write_gguf(gguf, folder / "tiny.gguf")
    return folder


def _write_gguf(gguf: Any, path: Path) -> None:
    """Write a Llama of random weights, its matrices in blocks of 8 bits, with a tokenizer of single characters."""
    width, layers, heads, inner, vocabulary = 64, 4, 4, 128, 97
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*(chr(33 + index) for index in range(vocabulary - 1)), "!#"])
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges(["! #"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    draw = torch.Generator().manual_seed(0)

    def add(name: str, *shape: int) -> None:
        values = 0.2 * torch.randn(shape, generator=draw)
        if len(shape) == 1:
            writer.add_tensor(name, torch.ones(shape).numpy())
            return
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values.numpy(), kind), raw_dtype=kind)

    add("token_embd.weight", vocabulary, width)
    add("output.weight", vocabulary, width)
    add("output_norm.weight", width)
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}.weight", width, width)
        add(f"blk.{layer}.ffn_gate.weight", inner, width)
        add(f"blk.{layer}.ffn_up.weight", inner, width)
        add(f"blk.{layer}.ffn_down.weight", width, inner)
        add(f"blk.{layer}.attn_norm.weight", width)
        add(f"blk.{layer}.ffn_norm.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_dequantised_and_decodes_exactly(gguf_folder: Path) -> None:
    loaded = ssd_infer.load(gguf_folder, dtype="float32", gguf_file="tiny.gguf")
    assert loaded.tokenizer is not None
    check_exact(loaded, greedy(loaded.model))


def test_a_folder_with_a_gguf_file_says_how_to_load_it(gguf_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config.json.* add gguf_file=tiny.gguf"):
        ssd_infer.load(gguf_folder)
    with pytest.raises(CheckpointError, match=r"gguf_file: .* holds no 'other.gguf'; it holds tiny.gguf"):
        ssd_infer.load(gguf_folder, gguf_file="other.gguf")
