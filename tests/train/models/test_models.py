"""Models from scratch and from disk, and every way a checkpoint can be wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

from ssd_infer.errors import CheckpointError, ConfigError, DataError, UnsupportedModelError
from ssd_train.config.schema import HFModelConfig, ModelConfig, Root, ScratchModelConfig, StdlibTextConfig
from ssd_train.data.tokenizer import train_bpe
from ssd_train.models import build as models
from ssd_train.recipes.layerskip.settings import EarlyExitConfig, LayerSkipConfig
from ssd_train.recipes.plain.settings import PlainConfig
from ssd_train.recipes.registry import build

TINY = ScratchModelConfig(
    num_layers=3,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    max_length=64,
    vocab_size=300,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_bpe(["a few words to train on, over and over"] * 20, 300, 64)


@pytest.fixture
def saved(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Return a checkpoint directory of a tiny Llama."""
    models.build(TINY, tokenizer).save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def run(model: ModelConfig, exits: list[int] | None = None, block_size: int = 32) -> Root:
    recipe = LayerSkipConfig(early_exit=EarlyExitConfig(exits=exits))
    return Root(recipe_name="t", model=model, data=StdlibTextConfig(block_size=block_size), recipe=recipe)


@pytest.mark.parametrize("family", list(models.FAMILIES))
def test_a_model_of_each_family_has_the_shape_asked_for(
    family: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = models.build(dataclasses.replace(TINY, family=family, rope_theta=5000.0), tokenizer)
    config = model.config
    assert config.model_type == family
    assert len(model.model.layers) == 3
    assert model.get_input_embeddings().weight.shape == (300, 32)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert config.num_key_value_heads == 2
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 300)


@pytest.mark.parametrize("family", list(models.FAMILIES))
def test_a_saved_model_loads_in_plain_transformers(
    family: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = models.build(dataclasses.replace(TINY, family=family), tokenizer).eval()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    assert type(again) is type(model)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_weights_depend_on_the_seed_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    def weights(seed: int, noise: int) -> torch.Tensor:
        torch.manual_seed(noise)
        return torch.cat([p.flatten() for p in models.build(TINY, tokenizer, seed=seed).parameters()])

    assert torch.equal(weights(1, 10), weights(1, 20))
    assert not torch.equal(weights(1, 10), weights(2, 10))


def test_building_leaves_the_random_numbers_of_the_run_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    models.build(TINY, tokenizer, seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_initial_spread_and_its_scaling_with_depth(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = models.build(dataclasses.replace(TINY, init_std=0.05), tokenizer)
    scaled = models.build(dataclasses.replace(TINY, init_std=0.05, scale_residual_init=True), tokenizer)
    assert plain.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.05, rel=0.1)
    residual = {"o_proj", "down_proj"}
    for (name, before), (_, after) in zip(plain.named_parameters(), scaled.named_parameters(), strict=True):
        factor = 6**-0.5 if name.split(".")[-2] in residual else 1.0
        assert torch.allclose(after, before * factor), name


def test_a_pretrained_model_is_loaded_with_its_weights(
    saved: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = models.build(HFModelConfig(name=str(saved)), tokenizer)
    stored = load_file(saved / "model.safetensors")
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, stored["model.layers.1.mlp.up_proj.weight"])
    assert model.dtype == torch.float32


def cut_weights(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def cut_header(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\x10")


def spoilt_header(path: Path) -> None:
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:12] = b"oops"
    file.write_bytes(bytes(data))


def lost_shard(path: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_weights, r"model\.safetensors is cut short or damaged \(\d+ bytes, its header says \d+\)"),
        (cut_header, r"model\.safetensors is cut short"),
        (spoilt_header, r"model\.safetensors is damaged"),
        (lost_shard, r"model-00002\.safetensors is named in the index but missing"),
    ],
)
def test_the_damaged_file_is_named(
    damage: Callable[[Path], None], said: str, saved: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    damage(saved)
    with pytest.raises(CheckpointError, match=said):
        models.build(HFModelConfig(name=str(saved)), tokenizer)


def test_a_directory_without_weights_is_an_error(saved: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.name: the weights cannot be loaded"):
        models.build(HFModelConfig(name=str(saved)), tokenizer)


def test_a_missing_checkpoint_is_an_error(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json .*save_pretrained"):
        models.build(HFModelConfig(name=str(tmp_path)), tokenizer)


def test_an_unknown_name_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerBase
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"model\.name: no such model .*'./not/there'"):
        models.build(HFModelConfig(name="./not/there"), tokenizer)


def test_a_tokenizer_larger_than_the_model_is_an_error(saved: Path) -> None:
    larger = train_bpe([f"many different words {i * 17}" for i in range(300)], 400, 64)
    with pytest.raises(DataError, match=r"model\.name: the tokenizer does not belong .* 399, .* 300 rows"):
        models.build(HFModelConfig(name=str(saved)), larger)


def checked(cfg: Root) -> None:
    """Check the model as the recipe does."""
    build(cfg.recipe).check(cfg)


def test_gpt2_is_refused_for_layer_skipping_in_one_sentence(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=300)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"gpt2 models are not supported, because .*llama"):
        checked(run(HFModelConfig(name=str(tmp_path))))
    plain = dataclasses.replace(run(HFModelConfig(name=str(tmp_path))), recipe=PlainConfig())
    assert models.check(plain).model_type == "gpt2"


@pytest.mark.parametrize("exits", [[3], [0], [1, 7]])
def test_exits_outside_a_model_are_found_before_its_weights(exits: list[int], saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as caught:
        checked(run(HFModelConfig(name=str(saved)), exits))
    assert [problem.key for problem in caught.value.problems] == ["recipe.early_exit.exits"]
    assert "between 1 and 2" in str(caught.value)


def test_all_problems_of_a_model_are_said_together(saved: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(run(HFModelConfig(name=str(saved)), [9], block_size=65))
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["recipe.early_exit.exits", "data.block_size"]


def test_a_good_model_passes_the_check(saved: Path) -> None:
    checked(run(HFModelConfig(name=str(saved)), [1, 2], block_size=64))


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"model\.family: must be one of llama, qwen3, mistral, olmo2"):
        models.scratch_config(dataclasses.replace(TINY, family="bert"))


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors", {"format": "pt"})


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop(NORM), rf"missing: {NORM}"),
        (lambda weights: weights.update(stray=torch.ones(1)), r"unknown to the model: stray"),
        (lambda weights: weights.update({NORM: torch.ones(1)}), NORM),
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object],
    said: str,
    saved: Path,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rewrite(saved, change)
    with pytest.raises(CheckpointError, match=said):
        models.build(HFModelConfig(name=str(saved)), tokenizer)
