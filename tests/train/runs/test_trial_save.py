"""What only a save looks at ends a run before its first step."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from ssd_infer.errors import CheckpointError, SSDError
from ssd_train import run
from ssd_train.config.schema import HFModelConfig, Root
from ssd_train.recipes.layerskip.recipe import LayerSkipRecipe
from tests.train.support import tiny_root


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint to continue from."""
    done = run.train(tiny_root(tmp_path_factory.mktemp("base"), max_steps=1))
    return done / "checkpoints" / "step-1"


def continuing(base: Path, tmp_path: Path, **generation: Any) -> Root:
    """Return a run of one step from a copy of `base` whose generation config has these settings."""
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    file = folder / "generation_config.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | generation))
    return replace(tiny_root(tmp_path, max_steps=1), model=HFModelConfig(name=str(folder)))


def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a training step an error of the test."""

    def step(*_: Any, **__: Any) -> None:
        raise AssertionError("a step was trained")

    monkeypatch.setattr(LayerSkipRecipe, "step", step)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "top_k": 20},
        {"do_sample": False, "min_p": 0.1, "typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1},
        {"num_beams": 1, "length_penalty": 2.0, "early_stopping": True},
        {"pad_token_id": -1},
        {"use_cache": False, "cache_implementation": "static"},
        {"output_scores": True, "output_attentions": True},
    ],
)
def test_a_generation_config_that_cannot_be_saved_is_mended_aloud(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    done = run.train(continuing(base, tmp_path, **settings))
    saved = GenerationConfig.from_pretrained(done / "checkpoints" / "step-1")
    saved.validate(strict=True)
    neutral = ("do_sample", "num_beams", "use_cache")
    for key, value in settings.items():
        if key not in neutral:
            assert f"{key}={value!r}" in caplog.text
            assert getattr(saved, key) != value


def test_one_that_samples_is_kept_as_it_is(base: Path, tmp_path: Path) -> None:
    done = run.train(continuing(base, tmp_path, do_sample=True, temperature=0.6, top_p=0.9))
    saved = GenerationConfig.from_pretrained(done / "checkpoints" / "step-1")
    assert (saved.do_sample, saved.temperature, saved.top_p) == (True, 0.6, 0.9)


def test_one_that_cannot_be_mended_is_refused_before_a_step(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_step(monkeypatch)
    with pytest.raises(SSDError, match=r"model\.name: .*num_return_sequences"):
        run.train(continuing(base, tmp_path, num_return_sequences=3))


def test_a_configuration_only_the_save_refuses_is_found_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_step(monkeypatch)
    build = LayerSkipRecipe.build_model

    def spoilt(self: LayerSkipRecipe, cfg: Root, data: Any) -> Any:
        model = build(self, cfg, data)
        model.config.note = object()  # no JSON
        return model

    monkeypatch.setattr(LayerSkipRecipe, "build_model", spoilt)
    cfg = tiny_root(tmp_path)
    with pytest.raises(CheckpointError, match=r"could not be saved .*TypeError.*nothing was trained"):
        run.train(cfg)
    assert list((cfg.run_dir / "checkpoints").iterdir()) == []


def test_a_tokenizer_only_the_save_refuses_is_found_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_step(monkeypatch)
    build = LayerSkipRecipe.build_data

    def spoilt(self: LayerSkipRecipe, cfg: Root, run_dir: Path) -> Any:
        data = build(self, cfg, run_dir)
        monkeypatch.setattr(
            type(data.tokenizer), "save_pretrained", lambda *_, **__: (_ for _ in ()).throw(ValueError("odd"))
        )
        return data

    monkeypatch.setattr(LayerSkipRecipe, "build_data", spoilt)
    cfg = tiny_root(tmp_path)
    cfg.model = replace(cfg.model)
    run_dir = cfg.run_dir
    with pytest.raises((CheckpointError, ValueError), match="odd"):
        run.train(cfg)
    assert not list(run_dir.glob("checkpoints/step-*"))


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("checkpoints", True, "is a file"),
        ("reports", True, "is a file"),
        ("best.json", False, "is a directory"),
        ("checkpoints/.partial-trial", True, None),
    ],
)
def test_names_that_are_taken_are_found_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: bool, said: str | None
) -> None:
    cfg = tiny_root(tmp_path, max_steps=1)
    place = cfg.run_dir / name
    place.parent.mkdir(parents=True)
    place.touch() if file else place.mkdir()
    if said is None:
        run.train(cfg)
        assert not place.exists()
        return
    no_step(monkeypatch)
    with pytest.raises(SSDError, match=f"{name} {said}"):
        run.train(cfg)


def test_too_little_room_is_found_before_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_step(monkeypatch)
    room = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: room._replace(free=17 << 20))
    monkeypatch.setattr("ssd_train.trainer.trainer.SSDTrainer._checkpoint_bytes", lambda _self: 1 << 30)
    with pytest.raises(CheckpointError, match="no space left on the disk; nothing was trained"):
        run.train(tiny_root(tmp_path))


def test_the_rehearsal_leaves_nothing_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    from ssd_train.runs.checkpoints import CheckpointStore

    rehearse = CheckpointStore.rehearse

    def watched(self: CheckpointStore, write: Any) -> None:
        def note(directory: Path) -> None:
            write(directory)
            seen.append({path.name for path in directory.iterdir()})

        rehearse(self, note)
        assert list(self.directory.iterdir()) == []

    monkeypatch.setattr(CheckpointStore, "rehearse", watched)
    done = run.train(tiny_root(tmp_path, max_steps=1))
    assert {"config.json", "generation_config.json", "tokenizer.json", "ssd.json", "config.yaml"} <= seen[0]
    model = AutoModelForCausalLM.from_pretrained(done / "checkpoints" / "step-1")
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
