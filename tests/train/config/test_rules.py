"""Every rule of the training configuration, broken one at a time, and the precedence of its sources."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from ssd_infer.config.compose import config_directory
from ssd_infer.errors import ConfigError
from ssd_train.__main__ import settings_of
from ssd_train.config import schema
from ssd_train.recipes.layerskip.settings import LayerSkipConfig
from tests.commands import option_names

RECIPE = "+recipe=layerskip"
DEEP = "model=deep_narrow"


def small(overrides):
    """Return what makes the run small enough to be valid whatever the defaults are tuned to."""
    model = [] if any(item.startswith("model=") for item in overrides) else ["model=tiny"]
    return [*model, "data.block_size=64", "recipe.early_exit.exits=null"]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["run_name=a/b"], "run_name"),
        (["run_name=.."], "run_name"),
        (["output_root="], "output_root"),
        (["run_name='\udcff'"], "run_name"),
        (["seed=-1"], "seed"),
        (["seed=4294967296"], "seed"),
        (["seed=1180591620717411303424"], "seed"),
        (["threads=-1"], "threads"),
        (["resume=maybe"], "resume"),
        (["device=tpu"], "device"),
        (["dtype=int8"], "dtype"),
        (["train.max_steps=0"], "train.max_steps"),
        (["train.batch_size=0"], "train.batch_size"),
        (["train.grad_accum=0"], "train.grad_accum"),
        (["train.learning_rate=0"], "train.learning_rate"),
        (["train.learning_rate=nan"], "train.learning_rate"),
        (["train.weight_decay=-1"], "train.weight_decay"),
        (["train.warmup_steps=1.5"], "train.warmup_steps"),
        (["train.warmup_steps=-1"], "train.warmup_steps"),
        (["train.max_steps=10", "train.warmup_steps=10"], "train.warmup_steps"),
        (["train.lr_scheduler=cosin"], "train.lr_scheduler"),
        (["train.adam_beta1=1"], "train.adam_beta1"),
        (["train.adam_beta2=1"], "train.adam_beta2"),
        (["train.max_grad_norm=-1"], "train.max_grad_norm"),
        (["train.save_steps=0"], "train.save_steps"),
        (["train.keep_last=-1"], "train.keep_last"),
        (["eval.draft=early_exi"], "eval.draft"),
        (["eval.tasks=[]"], "eval.tasks"),
        (["eval.tasks=['file:/nowhere.jsonl']"], "eval.tasks.0"),
        (["eval.samples=0"], "eval.samples"),
        (["eval.max_minutes=-1"], "eval.max_minutes"),
        (["model.family=lama"], "model.family"),
        (["model.num_layers=1"], "model.num_layers"),
        (["model.num_heads=5", "model.num_kv_heads=1"], "model.num_heads"),
        (["model.num_heads=64"], "model.num_heads"),
        (["model.num_heads=0"], "model.num_heads"),
        (["model.num_kv_heads=3"], "model.num_kv_heads"),
        (["model.init_std=0"], "model.init_std"),
        (["model.max_length=128", "data.block_size=256"], "model.max_length"),
        (["model.vocab_size=300", "data.tokenizer_vocab=512"], "model.vocab_size"),
        (["model=hf", "model.name=./nowhere"], "model.name"),
        (["data.block_size=1", "model.max_length=8"], "data.block_size"),
        (["data.validation_share=1"], "data.validation_share"),
        (["data.tokenizer_vocab=100"], "data.tokenizer_vocab"),
        (["data.code_share=1.1"], "data.code_share"),
        (["data.max_mb=0"], "data.max_mb"),
        (["data=local", "data.path=/nowhere/*.txt"], "data.path"),
        (["data=hub", "data.name=x", "data.max_documents=-1"], "data.max_documents"),
        (["optim.name=adam"], "optim.name"),
        (["optim.epsilon=0"], "optim.epsilon"),
        (["engine.name=mesh"], "engine.name"),
        (["engine=ddp", "engine.timeout_minutes=3", "eval.every_checkpoint=true"], "engine.timeout_minutes"),
        (["engine=ddp", "eval.max_minutes=0", "eval.every_checkpoint=true"], "engine.timeout_minutes"),
        (["tracking.name=notebook"], "tracking.name"),
        (["tracking.mode=later"], "tracking.mode"),
        (["recipe.layer_dropout.p_max=1"], "recipe.layer_dropout.p_max"),
        (["recipe.layer_dropout.layer_scale=quadratic"], "recipe.layer_dropout.layer_scale"),
        (["recipe.layer_dropout.time_scale=linear"], "recipe.layer_dropout.time_scale"),
        (["recipe.early_exit.e_scale=1.1"], "recipe.early_exit.e_scale"),
        (["recipe.early_exit.weights=square"], "recipe.early_exit.weights"),
        (["recipe.early_exit.curriculum=rotate"], "recipe.early_exit.curriculum"),
        (["recipe.early_exit.period=0"], "recipe.early_exit.period"),
        (["recipe.early_exit.chunk_tokens=0"], "recipe.early_exit.chunk_tokens"),
        (["recipe.early_exit.distill_weight=-1"], "recipe.early_exit.distill_weight"),
        (["recipe.early_exit.distill_direction=up"], "recipe.early_exit.distill_direction"),
        (
            [f"recipe.early_exit.{k}_weight=0" for k in ("ce", "distill", "agreement")],
            "recipe.early_exit.ce_weight",
        ),
        (["recipe.early_exit.exits=[]"], "recipe.early_exit.exits"),
        (["recipe.early_exit.exits=[2,2]"], "recipe.early_exit.exits"),
        (["recipe.early_exit.exits=[0]"], "recipe.early_exit.exits.0"),
        (["recipe.early_exit.exits=[2,999]"], "recipe.early_exit.exits.1"),
        (["recipe.early_exit.exits=[8]", "model.num_layers=8"], "recipe.early_exit.exits.0"),
    ],
)
def test_a_broken_rule_names_its_key_only(compose, overrides, key):
    with pytest.raises(ConfigError) as caught:
        settings_of(compose(RECIPE, *small(overrides), *overrides))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_heads_message_has_rule_value_and_remedy(compose):
    with pytest.raises(ConfigError) as caught:
        settings_of(compose(RECIPE, "model=tiny", "model.num_heads=3", "model.num_kv_heads=3"))
    expected = "model.num_heads: must divide model.hidden_size, 32, into even parts (got 3); try 2"
    assert str(caught.value) == expected


def test_exits_are_checked_against_a_checkpoint_on_disk(compose, tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 6}', encoding="utf-8")
    good = (RECIPE, "model=hf", f"model.name={tmp_path}")
    assert settings_of(compose(*good, "recipe.early_exit.exits=[5]")).recipe.early_exit.exits == [5]
    with pytest.raises(ConfigError, match="below the model's 6 layers"):
        settings_of(compose(*good, "recipe.early_exit.exits=[6]"))


def test_layers_beyond_reach_of_the_network_are_left_to_the_run(compose):
    cfg = settings_of(
        compose(RECIPE, "model=hf", "model.name=someone/something", "recipe.early_exit.exits=[99]")
    )
    assert cfg.recipe.early_exit.exits == [99]


@pytest.mark.parametrize(
    ("recipe", "model"),
    [
        *itertools.product(
            [name for name in option_names("recipe") if name not in ("asr_ctc", "frozen_target")],
            ["deep_narrow", "tiny"],
        ),
        ("asr_ctc", "ctc_asr"),
        ("frozen_target", "hf"),
    ],
)
@pytest.mark.parametrize("tracking", option_names("tracking"))
def test_every_shipped_choice_is_valid(compose, recipe, model, tracking):
    named = ["model.name=some/model"] if model == "hf" else ["data.block_size=64"]
    cfg = settings_of(compose(f"+recipe={recipe}", f"model={model}", f"tracking={tracking}", *named))
    assert cfg.recipe_name == recipe
    assert cfg.tracking.name == tracking
    assert cfg.run_dir == Path("outputs") / recipe / "default"


def test_only_dataclasses_come_out(compose):
    def walk(value):
        assert not OmegaConf.is_config(value)
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                walk(getattr(value, field.name))

    cfg = settings_of(compose(RECIPE))
    walk(cfg)
    assert isinstance(cfg.model, schema.ScratchModelConfig)
    assert isinstance(cfg.recipe, LayerSkipConfig)
    with pytest.raises(AttributeError):
        cfg.typo = 1


def test_precedence_of_values_and_groups(compose, tmp_path):
    body = (
        "# @package _global_\ndefaults:\n  - layerskip\n  - _self_\n  - override /model: tiny\n"
        "  - override /tracking: none\nrecipe_name: mine\nrun_name: from_recipe\ndata:\n  block_size: 32\n"
    )
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(body, encoding="utf-8")
    where = f"hydra.searchpath=[file://{tmp_path}]"
    base = compose(RECIPE)
    assert (base.model.num_layers != 4, base.tracking.name, base.run_name) == (True, "wandb", "default")
    cfg = settings_of(compose(where, "+recipe=mine"))
    assert (cfg.model.num_layers, cfg.tracking.name, cfg.run_name) == (4, "none", "from_recipe")
    assert cfg.data.block_size == 32
    cfg = settings_of(compose(where, "+recipe=mine", DEEP, "run_name=typed", "data.block_size=16"))
    assert cfg.model.num_layers == base.model.num_layers
    assert (cfg.run_name, cfg.data.block_size, cfg.tracking.name) == ("typed", 16, "none")


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_primary_configs_hold_no_override_and_no_recipe(name):
    file = Path(config_directory()) / f"{name}.yaml"
    defaults = yaml.safe_load(file.read_text(encoding="utf-8"))["defaults"]
    keys = [key for entry in defaults if isinstance(entry, dict) for key in entry]
    assert keys
    assert not [key for key in keys if key.startswith("override ") or "recipe" in key]


def test_no_time_stamps_and_no_targets_in_any_file():
    files = list(Path(config_directory()).rglob("*.yaml"))
    assert len(files) > 10
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "${now:" not in text, file
        assert "_target_" not in text, file
