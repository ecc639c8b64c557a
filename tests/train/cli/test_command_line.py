"""Mistakes on the training command line: one screen that names them all, an exit code, nothing left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RECIPE = "+recipe=layerskip"


def write_recipe(directory: Path, name: str, body: str) -> str:
    """Write a user's recipe that builds on layerskip; return the directory for `--config-dir`."""
    head = "# @package _global_\n# A recipe of my own.\ndefaults:\n  - layerskip\n  - _self_\n"
    file = directory / "mine" / "recipe" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{head}  - override /model: tiny\nrecipe_name: {name}\n{body}", encoding="utf-8")
    return str(directory / "mine")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("train.max_stepz=3", "train.max_stepz: is not a known key (got '3'); did you mean 'max_steps'?"),
        ("+train.max_stepz=3", "train.max_stepz: is not a known key (got 3); did you mean 'max_steps'?"),
        ("++train.max_stepz=3", "train.max_stepz: is not a known key (got 3); did you mean 'max_steps'?"),
        ("+sed=1", "sed: is not a known key (got 1); did you mean 'seed'?"),
        ("+recipe.early_exit.e_scal=1", "recipe.early_exit.e_scal: is not a known key (got 1)"),
        ("train.max_steps=many", "train.max_steps: must be a whole number (got 'many')"),
        ("resume=[a]", "resume:"),
        ("train=3", "train: is a group of settings (TrainConfig), not a single value (got '3')"),
        ("~train.max_steps", "train.max_steps: cannot be removed"),
        ("model=tinny", "model: there is no such option (got 'tinny'); did you mean 'tiny'?"),
        ("+model=tiny", "model: is chosen already (got '+model'); leave the plus out"),
        ("+seed=1", "seed: exists already, so nothing can be added (got '+seed'); leave the plus out"),
        ("seed=1,2", "seed: must be one value (got '1,2')"),
        ("model=null", "command line: must name an option of each group of settings (got 'model=null')"),
        ("model=hf", "model.name: must be set (got '???'); add model.name=..."),
        ("data.block_size=${nowhere}", "data.block_size: cannot be resolved (got '${nowhere}')"),
        ("nonsense", "command line: every argument must read key=value (got 'nonsense')"),
        (
            "recipe.early_exit.exits=[4,999]",
            "recipe.early_exit.exits.1: must be at least 1 and below the model's ",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(train, tmp_path, argument, expected):
    result = train(RECIPE, argument)
    assert result.code == 2
    assert expected in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) == 2, "one headline, one problem"
    assert list(tmp_path.iterdir()) == []


def test_all_mistakes_are_reported_together(train):
    wrong = (
        "+typo=1",
        "train.max_stepz=2",
        "model.num_layers=x",
        "recipe.early_exit.exits=999",
        "oops",
        "seed=-1",
    )
    result = train(RECIPE, *wrong)
    assert result.code == 2
    assert result.err.splitlines()[0] == "Configuration: 6 problems"
    for key in (
        "typo",
        "train.max_stepz",
        "model.num_layers",
        "recipe.early_exit.exits.0",
        "command line",
        "seed",
    ):
        assert f"\n  {key}: " in result.err


def test_unknown_key_inside_a_recipe_file(train, tmp_path):
    folder = write_recipe(tmp_path, "mine", "train:\n  max_stepz: 3\n")
    result = train("+recipe=mine", "--config-dir", folder)
    assert result.code == 2
    expected = "train.max_stepz: is not a known key, in recipe/mine.yaml (got 'max_stepz'); did you mean 'max_steps'?"
    assert expected in result.err


def test_wrong_type_inside_a_recipe_file(train, tmp_path):
    folder = write_recipe(tmp_path, "mine", "train:\n  max_steps: many\n")
    result = train("+recipe=mine", "--config-dir", folder)
    assert (result.code, len(result.err.splitlines())) == (2, 2)
    assert "train.max_steps: must be a whole number, in recipe/mine.yaml (got 'many')" in result.err


def test_no_recipe_lists_those_there_are(train, tmp_path):
    result = train("train.max_steps=2")
    assert result.code == 2
    assert re.search(r"^  \+recipe=layerskip +LayerSkip: ", result.err, re.MULTILINE)
    assert re.search(r"^  \+recipe=plain +Plain: ", result.err, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["--config-dir={}", "hydra.searchpath=[file://{}]"])
def test_a_users_recipe_is_listed_and_composes(train, tmp_path, how):
    folder = write_recipe(tmp_path, "mine", "seed: 7\n")
    assert re.search(r"\+recipe=mine +A recipe of my own\.$", train(how.format(folder)).err, re.MULTILINE)
    result = train(how.format(folder), "+recipe=mine", "print_config=true")
    assert result.code == 0, result.err
    assert "recipe_name: mine" in result.out
    assert "num_layers: 4" in result.out
    assert "seed: 7" in result.out


def test_mistakes_beside_a_users_recipe_are_still_found(train, tmp_path):
    folder = write_recipe(tmp_path, "mine", "")
    result = train("--config-dir", folder, "+recipe=mine", "oops", "train.batch_size=0")
    assert result.err.splitlines()[0] == "Configuration: 2 problems"


def test_misspelt_recipe(train):
    result = train("+recipe=layerskp")
    assert result.code == 2
    assert "recipe: there is no such option (got 'layerskp'); did you mean 'layerskip'?" in result.err


def test_recipe_without_plus(train):
    result = train("recipe=layerskip")
    assert result.code == 2
    assert "recipe: has no default to replace (got 'layerskip'); write +recipe=layerskip" in result.err


def test_missing_config_dir(train):
    result = train(RECIPE, "--config-dir", "nowhere")
    assert result.code == 2
    assert "nowhere' not found" in result.err
    assert "Traceback" not in result.err


def test_hydra_full_error_still_shows_the_traceback(train):
    result = train(RECIPE, "train.max_stepz=3", HYDRA_FULL_ERROR="1")
    assert result.code != 0
    assert "Traceback" in result.err


def test_only_the_first_rank_speaks(train):
    assert train(RECIPE, "seed=-1", RANK="1").err == ""


def test_print_config_prints_the_resolved_run_and_writes_nothing(train, tmp_path):
    result = train(RECIPE, "print_config=true", "data.tokenizer_vocab=512", "eval.tasks=stdlib_code")
    assert result.code == 0, result.err
    assert "vocab_size: 512" in result.out
    assert "  - stdlib_code\n" in result.out
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_and_help_need_no_recipe(train, tmp_path):
    assert "max_steps:" in train("--cfg", "job").out
    assert "python -m ssd_train +recipe=NAME" in train("--help").out
    assert list(tmp_path.iterdir()) == []


def test_configuration_never_imports_torch(train, tmp_path):
    probe = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(probe, encoding="utf-8")
    path = f"{tmp_path}:{Path(__file__).resolve().parents[3]}"
    result = train(RECIPE, "train.max_steps=0", PYTHONPATH=path)
    assert "train.max_steps: must be at least 1 (got 0)" in result.err
    assert train(RECIPE, "print_config=true", PYTHONPATH=path).code == 0


def test_jobs_of_a_sweep_do_not_share_a_run_directory(train):
    result = train("--multirun", RECIPE, "seed=1,2", "print_config=true")
    assert result.code == 0, result.err
    names = [line for line in result.out.splitlines() if line.startswith("run_name: ")]
    assert names == [f"run_name: default-print_config=True,seed={seed}" for seed in (1, 2)]


def run_names(result) -> list[str]:
    assert result.code == 0, result.err
    return [line.partition(": ")[2] for line in result.out.splitlines() if line.startswith("run_name: ")]


def test_a_run_name_given_to_a_sweep_is_made_different_for_each_job(train):
    sweep = ("--multirun", RECIPE, "print_config=true")
    own = "print_config=True,seed="
    assert run_names(train(*sweep, "run_name=a", "seed=1,2")) == [f"a-{own}1", f"a-{own}2"]
    assert run_names(train(*sweep, "run_name=a,b")) == ["a", "b"]
    long = run_names(train(*sweep, "seed=1,2", "output_root=o", f"tracking.project={'p' * 300}"))
    assert len(set(long)) == 2
    assert all(len(name) < 200 for name in long)


def test_a_run_name_too_long_for_a_file_system_is_refused(train):
    result = train(RECIPE, f"run_name={'x' * 201}")
    assert result.code == 2
    assert "run_name: must be at most 200 bytes long" in result.err


@pytest.mark.parametrize("beside", [(), ("train.max_stepz=3",)])
def test_a_recipe_that_is_no_yaml_is_named_with_its_line(train, tmp_path, beside):
    folder = write_recipe(tmp_path, "mine", "seed: 7\ntrain: max_steps: 3\n")
    result = train("--config-dir", folder, "+recipe=mine", *beside)
    assert result.code == 2
    assert "mine.yaml, line 9: must be YAML (got 'mapping values are not allowed here')" in result.err
    assert "Traceback" not in result.err
