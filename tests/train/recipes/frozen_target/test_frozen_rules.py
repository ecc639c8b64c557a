"""Rules of the frozen-target recipe, each broken once, by the command line's own check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssd_infer.config.checks import Checks
from ssd_infer.errors import ConfigError
from ssd_infer.models.draft_modules.build import FORMS as BUILT
from ssd_train import run
from ssd_train.cli.validate import validate
from ssd_train.config.schema import EngineConfig, Root, ScratchModelConfig
from ssd_train.losses.restricted import _LOSSES
from ssd_train.recipes.frozen_target.forms import FORMS as TRAINED
from ssd_train.recipes.frozen_target.rules import FORMS
from tests.train.frozen_support import frozen_root


def problems(cfg: Root) -> dict[str, str]:
    checks = Checks()
    validate(cfg, checks)
    return {problem.key: str(problem) for problem in checks.problems}


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"form": "mpt", "exits": None}, "recipe.form", "did you mean 'mtp'?"),
        ({"form": "mtp"}, "recipe.exits", "belongs to recipe.form=exit"),
        ({"form": "heads", "exits": None}, "recipe.module", "set recipe.module=rank"),
        ({"module": "layers"}, "recipe.module", "did you mean 'layer'?"),
        ({"loss": "lk_hybird"}, "recipe.loss", "did you mean 'lk_hybrid'?"),
        ({"target_dtype": "float16"}, "recipe.target_dtype", "must be one of auto, float32, bfloat16"),
        ({"exits": [4]}, "recipe.exits.0", "below the model's 4 layers"),
        ({"exits": [2, 2]}, "recipe.exits", "must not repeat an exit"),
        ({"exits": []}, "recipe.exits", "must name at least one exit"),
        ({"rank": 0}, "recipe.rank", "must be at least 1"),
        ({"mlp_width": 0}, "recipe.mlp_width", "must be at least 1"),
        ({"rollout": 0}, "recipe.rollout", "must be at least 1"),
        ({"heads": 0}, "recipe.heads", "must be at least 1"),
        ({"rows": -1}, "recipe.rows", "0 looks at all of them"),
        ({"patience": -1}, "recipe.patience", "must be at least 0"),
        ({"step_decay": 1.5}, "recipe.step_decay", "must be in [0, 1]"),
        ({"chunk_tokens": 0}, "recipe.chunk_tokens", "must be at least 1"),
    ],
)
def test_each_rule_names_key_value_and_remedy(
    tmp_path: Path, changes: dict[str, Any], key: str, said: str
) -> None:
    cfg = frozen_root(tmp_path)
    assert problems(cfg) == {}
    found = problems(replace(cfg, recipe=replace(cfg.recipe, **changes)))
    assert set(found) == {key}
    assert said in found[key]


def test_what_stands_under_other_keys_is_checked_as_well(tmp_path: Path) -> None:
    cfg = frozen_root(tmp_path)
    assert "model=hf" in problems(replace(cfg, model=ScratchModelConfig()))["model.kind"]
    assert "recipe.target_dtype" in problems(replace(cfg, dtype="bfloat16"))["dtype"]
    narrow = replace(cfg, train=replace(cfg.train, save_dtype="bfloat16", activation_checkpointing=True))
    assert set(problems(narrow)) == {"train.save_dtype", "train.activation_checkpointing"}
    cut = problems(replace(cfg, engine=EngineConfig(name="deepspeed_zero3")))
    assert "engine=ddp" in cut["engine.name"]
    assert problems(replace(cfg, engine=EngineConfig(name="deepspeed_zero2"))) == {}


def test_a_block_has_room_for_a_draft_of_the_token_after_the_next(tmp_path: Path) -> None:
    cfg = frozen_root(tmp_path, recipe={"form": "mtp"})
    short = replace(cfg, data=replace(cfg.data, block_size=2))
    assert "at least 3" in problems(short)["data.block_size"]
    exits = frozen_root(tmp_path)
    assert problems(replace(exits, data=replace(exits.data, block_size=2))) == {}


def test_a_block_longer_than_the_models_positions_is_refused_before_weights_load(tmp_path: Path) -> None:
    cfg = frozen_root(tmp_path)
    config = Path(cfg.model.name) / "config.json"  # type: ignore[attr-defined]
    stored = json.loads(config.read_text())
    limit = cfg.data.block_size - 1
    config.write_text(json.dumps(stored | {"max_position_embeddings": limit}))
    with pytest.raises(
        ConfigError, match=rf"data\.block_size: must not exceed the model's {limit} positions"
    ):
        run.train(cfg)
    assert not (cfg.run_dir / "checkpoints").exists()


def test_names_of_the_rules_are_those_of_what_is_built_and_computed() -> None:
    assert set(FORMS) == set(TRAINED) == set(BUILT)
    assert list(_LOSSES) == ["lk_hybrid", "kl", "tv", "nla", "ce"]
