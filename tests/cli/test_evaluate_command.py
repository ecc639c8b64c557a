"""The evaluation command line: settings, mistakes, and the exit code of a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ssd_infer.__main__ import _watch_names_checkpoints, exit_code, settings_of
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.registry import get, registry
from tests.commands import option_names


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a directory that looks like a checkpoint to the configuration."""
    folder = tmp_path / "run" / "checkpoints" / "step-20"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 4}), encoding="utf-8")
    return folder


def row(status="ok", verdict="pass", claimed=True):
    return {"status": status, "lossless": {"claimed": claimed, "verdict": verdict}}


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row(), row("not_applicable", "not_run")], 0),
        ([row(), row(verdict="fail", claimed=False)], 0),
        ([row(), row(verdict="fail")], 1),
        ([row(), row(verdict="not_run")], 1),
        ([row("failed", "not_run")], 1),
    ],
)
def test_exit_code_asks_every_lossless_row(rows, code):
    assert exit_code({"strategies": rows}) == code


def test_defaults_and_draft_files(compose, checkpoint):
    settings = settings_of(compose(f"checkpoint={checkpoint}", name="evaluate"))
    assert (settings.draft, settings.tasks, settings.out) == ("all", ["auto"], None)
    settings = settings_of(compose(f"checkpoint={checkpoint}", "draft=early_exit+ngram", name="evaluate"))
    assert settings.draft == "early_exit+ngram"
    settings = settings_of(
        compose(f"checkpoint={checkpoint}", "draft=early_exit", "draft_params.exit_layer=3", name="evaluate")
    )
    assert settings.draft_params == {"exit_layer": 3, "gamma": "auto", "head": "auto"}


def test_all_mistakes_together(compose, checkpoint):
    wrong = (
        "samples=0",
        "dtype=fp32",
        "tasks=[stdlib_prse]",
        "temperatures=[-1]",
        "top_p=0",
        "seed=4294967296",
        "+typo=1",
    )
    with pytest.raises(ConfigError) as caught:
        settings_of(compose(f"checkpoint={checkpoint}", *wrong, name="evaluate"))
    keys = [problem.key for problem in caught.value.problems]
    assert sorted(keys) == ["dtype", "samples", "seed", "tasks.0", "temperatures.0", "top_p", "typo"]
    assert "did you mean 'stdlib_prose'?" in str(caught.value)


def test_missing_checkpoint(evaluate, tmp_path):
    result = evaluate("checkpoint=nowhere/step-3")
    assert result.code == 2
    assert (
        "checkpoint: must be a directory with a config.json (got 'nowhere/step-3'); nowhere does not"
        in result.err
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_is_pointed_to_its_checkpoint(evaluate, checkpoint):
    run = checkpoint.parents[1]
    result = evaluate(f"checkpoint={run}")
    assert result.code == 2
    assert f"that is a run; try checkpoint={checkpoint}" in result.err


def test_a_copy_of_a_checkpoint_is_not_the_newest(evaluate, checkpoint):
    run = checkpoint.parents[1]
    shutil.copytree(checkpoint, checkpoint.with_name("step-280.bak"))
    assert f"that is a run; try checkpoint={checkpoint}\n" in evaluate(f"checkpoint={run}").err


def test_checkpoint_not_given(evaluate):
    result = evaluate()
    assert result.code == 2
    assert "checkpoint: must be set (got '???'); add checkpoint=..." in result.err


def test_unknown_draft_lists_the_known_ones(evaluate, checkpoint):
    result = evaluate(f"checkpoint={checkpoint}", "draft=early_exi", "samples=0")
    assert result.code == 2
    assert "draft: there is no such option (got 'early_exi'); did you mean 'early_exit'?" in result.err
    assert "samples: must be at least 1 (got 0)" in result.err


def test_one_task_needs_no_brackets(evaluate, checkpoint):
    result = evaluate(f"checkpoint={checkpoint}", "tasks=stdlib_prose,nothing", "temperatures=0", "samples=0")
    assert result.err.splitlines()[0] == "Configuration: 2 problems"
    assert "tasks.1: is not a task (got 'nothing')" in result.err


def test_benchmark_files_are_looked_for_and_read_before_the_weights(evaluate, checkpoint, tmp_path):
    path = tmp_path / "question.jsonl"
    given = f"tasks=[categorie,spec_bench:{path},speed_bench:{path},spec_bench:x]"
    wrong = evaluate(f"checkpoint={checkpoint}", given)
    assert wrong.code == 2
    assert "tasks.0: is not a task (got 'categorie'); did you mean 'categories'?" in wrong.err
    assert f"tasks.1: there is no such file (got 'spec_bench:{path}')" in wrong.err
    assert f"tasks.2: there is no such file (got 'speed_bench:{path}')" in wrong.err
    assert "tasks: may name one spec_bench: file" in wrong.err
    path.write_text('{"category": "writing", "turns": ["a"]}\n{"category": "writing", "turns": "b"}\n')
    malformed = evaluate(f"checkpoint={checkpoint}", f"tasks=[spec_bench:{path}]")
    assert malformed.code == 2
    assert f"{path}:2: turns must be a list of one message or more (got 'b'); write" in malformed.err
    assert "Traceback" not in malformed.err
    assert "loading the checkpoint" not in malformed.out + malformed.err


def test_help(evaluate):
    result = evaluate("--help")
    assert result.code == 0
    assert "python -m ssd_infer checkpoint=DIR" in result.out


def test_every_draft_strategy_has_its_configuration_file():
    from ssd_infer.strategies.ctc_draft.ctc_params import NAMES
    from ssd_infer.strategies.registry import registry

    speech = [name.replace(":", "+") for name in NAMES]
    diffusion, groups = ["fewer_steps"], ["all", "skip_layer"]
    assert sorted([*registry(), *speech, *diffusion, *groups]) == option_names("draft")


def test_watching_needs_no_checkpoint_and_no_place_for_reports(compose, tmp_path):
    arguments = ["ssd_infer", f"watch={tmp_path}"]
    _watch_names_checkpoints(arguments)
    assert settings_of(compose(*arguments[1:], name="evaluate")).watch == str(tmp_path)
    with pytest.raises(ConfigError, match="out: goes to reports/ of the run"):
        settings_of(compose(*arguments[1:], "out=elsewhere", name="evaluate"))


@pytest.mark.parametrize("name", registry())
def test_what_a_draft_file_sets_is_what_its_draft_takes(name: str, compose, checkpoint):
    settings = settings_of(compose(f"checkpoint={checkpoint}", f"draft={name}", name="evaluate"))
    assert get(name).parse(settings.draft_params, None).problems(None) == []
