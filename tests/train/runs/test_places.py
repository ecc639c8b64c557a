"""A run directory and what the run reads must not lie in each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ssd_infer.errors import ConfigError
from ssd_train import run
from ssd_train.config.schema import HFModelConfig, LocalTextConfig, Root
from ssd_train.runs.places import check_places
from tests.train.support import tiny_llama, tiny_root


def with_model(cfg: Root, folder: Path) -> Root:
    """Return `cfg` continuing a model that is written into `folder`."""
    tiny_llama(vocab_size=300).save_pretrained(folder)
    return replace(cfg, model=HFModelConfig(name=str(folder)))


def test_a_checkpoint_of_the_run_itself_is_refused_for_the_real_reason(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    cfg = with_model(cfg, cfg.run_dir / "checkpoints" / "step-4")
    with pytest.raises(
        ConfigError, match=r"model\.name: lies inside the run directory, which resume=never moves"
    ):
        run.train(replace(cfg, resume="never"))
    assert (cfg.run_dir / "checkpoints" / "step-4" / "config.json").exists()
    with pytest.raises(ConfigError, match=r"model\.name: lies among the files of this run"):
        run.train(cfg)


def test_a_model_that_lies_beside_what_the_run_removes_may_be_continued(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    check_places(with_model(cfg, cfg.run_dir / "base"))


@pytest.mark.parametrize("inside", [(), ("deeper",)])
def test_a_run_directory_in_a_models_folder_is_refused(tmp_path: Path, inside: tuple[str, ...]) -> None:
    cfg = tiny_root(tmp_path)
    home = cfg.run_dir
    cfg = with_model(replace(cfg, output_root=str(Path(cfg.output_root).joinpath(*inside))), home)
    if inside:
        cfg = replace(cfg, output_root=str(home / "deeper"))
    for resume in ("auto", "never"):
        with pytest.raises(ConfigError) as caught:
            run.train(replace(cfg, resume=resume))
        assert {problem.key for problem in caught.value.problems} <= {"output_root", "model.name"}
    assert sorted(path.name for path in home.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]


def test_a_config_json_of_something_else_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"editor": "ed"}')
    check_places(tiny_root(tmp_path))


@pytest.mark.parametrize(
    ("place", "resume", "rule"),
    [
        ("texts", "never", "lies inside the run directory"),
        ("texts", "auto", None),
        ("checkpoints/old", "auto", "lies among the files of this run"),
        ("reports", "auto", "lies among the files of this run"),
        (".", "auto", "is the run directory itself"),
        ("../..", "auto", "holds the run directory"),
    ],
)
def test_data_in_the_run_directory(tmp_path: Path, place: str, resume: str, rule: str | None) -> None:
    cfg = tiny_root(tmp_path)
    folder = cfg.run_dir / place
    cfg.run_dir.mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    cfg = replace(cfg, resume=resume, data=LocalTextConfig(path=str(folder)))
    if rule is None:
        check_places(cfg)
        return
    with pytest.raises(ConfigError, match=rf"data\.path: {rule}.*choose another run_name"):
        check_places(cfg)


def test_a_link_does_not_hide_where_a_model_lies(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    cfg = with_model(cfg, cfg.run_dir / "checkpoints" / "step-4")
    (tmp_path / "base").symlink_to(cfg.run_dir / "checkpoints" / "step-4")
    with pytest.raises(ConfigError, match="lies among the files of this run"):
        check_places(replace(cfg, model=HFModelConfig(name=str(tmp_path / "base"))))
