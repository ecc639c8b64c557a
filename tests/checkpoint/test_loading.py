"""Loading as people load: from_pretrained's options, models spread over devices, adapters; exact or refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import ssd_infer
from ssd_infer.errors import CheckpointError, ConfigError, UnsupportedModelError
from tests.conftest import build_model

ROWS = [[5, 6, 7, 5, 6, 7, 5], [9, 8, 7], [4, 4, 5, 9, 20, 11, 3, 2, 8, 30]]
NEW = 16
DRAFTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "ngram": {"gamma": 4},
    "early_exit": {"exit_layer": 3, "gamma": 4},
    "early_exit+ngram": {"exit_layer": 3, "gamma": 4},
    "skip_set": {"skip_attention": [2], "skip_mlp": [1], "gamma": 3, "confidence": 0.0, "guard": 0.0},
    "sparse_attention": {"selector": "pillar", "ratio": 0.3, "min_budget": 4, "gamma": 3},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    build_model().save_pretrained(folder)
    return folder


def greedy(model: Any) -> list[list[int]]:
    """Return transformers' greedy continuation of every row."""
    found = []
    for row in ROWS:
        ids = torch.tensor([row])
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(out[0, len(row) :].tolist())
    return found


def check_exact(model: Any, expected: list[list[int]], refused: tuple[str, ...] = ()) -> None:
    """Decode with every draft, in a ragged batch and alone; those of `refused` say in one sentence why not."""
    for draft, params in DRAFTS.items():
        given: dict[str, Any] = {"draft": draft, "draft_params": params or None, "max_new_tokens": NEW}
        if draft in refused:
            with pytest.raises(ConfigError) as caught:
                ssd_infer.generate(model, ROWS, **given)
            assert "\n" not in str(caught.value)
            continue
        assert ssd_infer.generate(model, ROWS, **given).sequences == expected, draft
        assert ssd_infer.generate(model, ROWS[:1], **given).sequences == expected[:1], draft


PARTS = (
    "model.embed_tokens",
    *(f"model.layers.{i}" for i in range(4)),
    "model.norm",
    "model.rotary_emb",
    "lm_head",
)
SPREAD: dict[str, set[str]] = {
    "nothing": set(),
    "middle layers": {"model.layers.1", "model.layers.2"},
    "all layers": {f"model.layers.{index}" for index in range(4)},
    "embeddings": {"model.embed_tokens"},
    "norm and head": {"model.norm", "lm_head"},
    "everything": set(PARTS) - {"model.rotary_emb"},
}
WRAPPED = ("skip_set", "sparse_attention")
"""Drafts that reach into layers, which accelerate's fetching of weights from disk does not allow."""


@pytest.mark.parametrize("case", SPREAD)
def test_a_model_spread_over_memory_and_disk_decodes_exactly(
    checkpoint: Path, tmp_path: Path, case: str
) -> None:
    places = {part: "disk" if part in SPREAD[case] else "cpu" for part in PARTS}
    loaded = ssd_infer.load(checkpoint, device_map=places, offload_folder=tmp_path)
    check_exact(loaded, greedy(build_model()), WRAPPED if SPREAD[case] else ())
    assert any(weight.is_meta for weight in loaded.model.parameters()) == (case != "nothing")
    out = loaded.model.generate(
        torch.tensor(ROWS[:1]),
        max_new_tokens=NEW,
        do_sample=False,
        custom_generate=ssd_infer.hf_generate,
        draft="early_exit",
        draft_params=DRAFTS["early_exit"],
    )
    assert out[0, len(ROWS[0]) :].tolist() == greedy(build_model())[0]


def test_accelerate_may_spread_it_as_memory_allows(checkpoint: Path, tmp_path: Path) -> None:
    loaded = ssd_infer.load(
        checkpoint, device_map="auto", max_memory={"cpu": "60KB"}, offload_folder=tmp_path
    )
    assert any(weight.is_meta for weight in loaded.model.parameters())
    check_exact(loaded, greedy(build_model()), WRAPPED)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"device_map": "auto", "device": "cpu"}, "device"),
        ({"max_memory": {"cpu": "1GB"}}, "max_memory"),
        ({"offload_folder": "x"}, "offload_folder"),
        ({"device_map": 5}, "device_map"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "nothing"}}, "quantization_config"),
        ({"adapter": "nowhere/at/all"}, "adapter"),
        ({"quantization_config": "torchao"}, "quantization_config"),
        ({"attn_implementation": "eagre"}, "attn_implementation"),
        ({"attn_implementation": 3}, "attn_implementation"),
        ({"revision": "main"}, "revision"),
        ({"dtype": "fp16"}, "dtype"),
        ({"dtype": "add"}, "dtype"),
        ({"dtype": torch.int8}, "dtype"),
        ({"dtype": 3}, "dtype"),
        ({"device": "gpu"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"device": 99}, "device"),
        ({"device": "meta"}, "device"),
    ],
)
def test_options_that_contradict_are_refused_by_name(
    checkpoint: Path, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ssd_infer.load(checkpoint, **options)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_options_come_too_late_for_a_loaded_model() -> None:
    with pytest.raises(ConfigError, match="revision: belongs to a checkpoint that is still to be loaded"):
        ssd_infer.load(build_model(), revision="main")
    with pytest.raises(ConfigError) as caught:
        ssd_infer.load(build_model(), dtype="bfloat16", device="cpu")
    assert [problem.key for problem in caught.value.problems] == ["dtype", "device"]


def test_what_is_no_place_of_a_model_is_refused(checkpoint: Path) -> None:
    for wrong in (ssd_infer.load(checkpoint), None, 3, ""):
        with pytest.raises(
            ConfigError, match="checkpoint: must be a directory, a name on the hub or a model"
        ):
            ssd_infer.load(wrong)  # type: ignore[arg-type]


def test_a_home_directory_may_be_abbreviated(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert ssd_infer.load(f"~/{checkpoint.name}").path == str(checkpoint)


def test_a_model_without_weights_is_refused_as_that() -> None:
    with pytest.raises(UnsupportedModelError, match=r"holds no weights \(they are on the meta device\)"):
        ssd_infer.generate(build_model().to("meta"), ROWS, max_new_tokens=4)


@pytest.mark.parametrize("backend", ["flash_attention_2", "flex_attention"])
def test_a_backend_without_masks_for_rows_is_replaced_and_says_so(checkpoint: Path, backend: str) -> None:
    loaded = ssd_infer.load(checkpoint, attn_implementation=backend)
    (note,) = loaded.notes
    assert backend in note
    assert "sdpa took its place" in note
    config: Any = loaded.model.config
    assert config._attn_implementation == "sdpa"
    assert ssd_infer.load(checkpoint, attn_implementation="eager").notes == ()


def test_a_model_loaded_with_such_a_backend_is_refused_with_the_remedy() -> None:
    model = build_model()
    config: Any = model.config
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedModelError, match=r"takes no per-row masks; load the model with attn_impl"):
        ssd_infer.generate(model, ROWS, max_new_tokens=4)


def adapted(**changes: Any) -> Any:
    """Return a PEFT model with an adapter of random weights."""
    torch.manual_seed(1)
    given = {"task_type": TaskType.CAUSAL_LM, "r": 4, "init_lora_weights": False}
    config = LoraConfig(**given | {"target_modules": ["q_proj", "v_proj", "down_proj"]} | changes)
    return get_peft_model(build_model(), config).eval()  # type: ignore[arg-type]


CHANGES: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "everywhere": {"target_modules": "all-linear"},
    "with a head of its own": {"modules_to_save": ["lm_head"]},
    "some layers": {"layers_to_transform": [1, 2]},
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_adapter_that_is_not_merged_decodes_exactly(checkpoint: Path, tmp_path: Path, case: str) -> None:
    """The PEFT model itself, the same from disk, and `adapter=DIR`; the model without it is another one."""
    model = adapted(**CHANGES[case])
    expected = greedy(model)
    assert expected != greedy(build_model())
    check_exact(model, expected)
    model.save_pretrained(tmp_path)
    check_exact(PeftModel.from_pretrained(build_model(), tmp_path).eval(), expected)
    loaded = ssd_infer.load(checkpoint, adapter=tmp_path)
    check_exact(loaded, expected)
    assert any("lora" in name for name, _ in loaded.model.named_parameters()), "it was not merged"


def test_an_adapter_switched_off_or_merged_is_seen() -> None:
    model = adapted()
    expected, bare = greedy(model), greedy(build_model())
    assert ssd_infer.generate(model, ROWS, max_new_tokens=NEW).sequences == expected
    with model.disable_adapter():
        assert ssd_infer.generate(model, ROWS, max_new_tokens=NEW).sequences == bare
    model.merge_adapter()
    assert ssd_infer.generate(model, ROWS, max_new_tokens=NEW).sequences == greedy(model)


def test_hf_generate_of_a_peft_model() -> None:
    model = adapted()
    out = model.generate(
        input_ids=torch.tensor(ROWS[:1]),
        max_new_tokens=NEW,
        do_sample=False,
        custom_generate=ssd_infer.hf_generate,
        draft="early_exit",
        draft_params=DRAFTS["early_exit"],
    )
    assert out[0, len(ROWS[0]) :].tolist() == greedy(model)[0]


def test_other_adapters_inside_layers_work_too(checkpoint: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    config = LoHaConfig(
        task_type=TaskType.CAUSAL_LM, r=4, target_modules=["q_proj", "up_proj"], init_weights=False
    )
    model = get_peft_model(build_model(), config).eval()  # type: ignore[arg-type]
    model.save_pretrained(tmp_path)
    expected = greedy(model)
    check_exact(model, expected)
    check_exact(ssd_infer.load(checkpoint, adapter=tmp_path), expected)


def test_learned_prompts_are_refused_in_words(checkpoint: Path, tmp_path: Path) -> None:
    config = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=4)
    model = get_peft_model(build_model(), config).eval()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model: must not be a PEFT model that learns prompts"):
        ssd_infer.generate(model, ROWS, max_new_tokens=4)
    with pytest.raises(ConfigError, match="model: must not be a PEFT model that learns prompts"):
        ssd_infer.load(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"adapter: .* learns prompts \(PROMPT_TUNING\)"):
        ssd_infer.load(checkpoint, adapter=tmp_path)


def test_an_adapter_of_another_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, target_modules=["q_proj"])
    for name, changes in (
        ("deeper", {"layers": 6}),
        ("wider", {"hidden_size": 64}),
        ("shallower", {"layers": 2}),
    ):
        other = get_peft_model(build_model(**changes), config)  # type: ignore[arg-type]
        other.save_pretrained(tmp_path / name)
        with pytest.raises(CheckpointError, match="adapter: ") as caught:
            ssd_infer.load(checkpoint, adapter=tmp_path / name)
        assert "\n" not in str(caught.value)
    (tmp_path / "wider" / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"adapter: .* does not load"):
        ssd_infer.load(checkpoint, adapter=tmp_path / "wider")
    with pytest.raises(CheckpointError, match=r"holds an adapter and not the model .* adapter="):
        ssd_infer.load(tmp_path / "deeper")


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    from tests.families.diffusion.support import build

    build(0).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match="device_map: is for causal language models, and this is a diffusion"
    ):
        ssd_infer.load(tmp_path, device_map="auto")


def test_a_hub_name_takes_its_revision_and_cache(checkpoint: Path, tmp_path: Path) -> None:
    """From a cache as the hub's client lays it out; nothing is fetched here."""
    cache, sha = tmp_path / "hub", "a" * 40
    place = cache / "models--someone--tiny"
    (place / "snapshots").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "v1").write_text(sha)
    shutil.copytree(checkpoint, place / "snapshots" / sha)
    words = Tokenizer(WordLevel({f"w{index}": index for index in range(97)}, "w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place / "snapshots" / sha)
    loaded = ssd_infer.load("someone/tiny", revision="v1", cache_dir=cache)
    assert ssd_infer.generate(loaded, ROWS, max_new_tokens=NEW).sequences == greedy(build_model())
    assert loaded.tokenizer("w5 w6").input_ids[0] in range(97)
    with pytest.raises(CheckpointError, match="'someone/tiny' does not load"):
        ssd_infer.load("someone/tiny", revision="v2", cache_dir=cache)


def test_auto_settles_on_an_offloaded_and_an_adapted_model(checkpoint: Path, tmp_path: Path) -> None:
    """Costs are measured and exits calibrated through the same view."""
    places = {part: "disk" if part == "model.layers.2" else "cpu" for part in PARTS}
    loaded = ssd_infer.load(checkpoint, device_map=places, offload_folder=tmp_path)
    out = ssd_infer.generate(loaded, ROWS[:1], draft="early_exit", max_new_tokens=NEW)
    assert out.sequences == greedy(build_model())[:1]
    model = adapted()
    assert (
        ssd_infer.generate(model, ROWS[:1], draft="early_exit", max_new_tokens=NEW).sequences
        == greedy(model)[:1]
    )
