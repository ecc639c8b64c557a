"""A pretrained model of 16-bit weights is saved as one again, and a resumed run does not feel the rounding."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_train import run
from ssd_train.cli.load import load_config
from ssd_train.config.schema import EngineConfig, HFModelConfig, Root, ScratchMoeConfig
from ssd_train.models import precision
from ssd_train.runs import checkpoints
from tests.train.diffusion_support import OBJECTIVES, diffusion_root
from tests.train.ranks import error_file, train_ranks
from tests.train.support import tiny_root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint in float32."""
    return run.train(tiny_root(tmp_path_factory.mktemp("base"), max_steps=1)) / "checkpoints" / "step-1"


def from_base(made: Path, tmp_path: Path, dtype: str, **train: Any) -> Root:
    """Return a run that continues the model of `made`, kept in `dtype`."""
    folder = tmp_path / "base"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("ssd*", "optimizer.pt"))
    AutoModelForCausalLM.from_pretrained(made, dtype=getattr(torch, dtype)).save_pretrained(folder)
    settings = {"max_steps": 4, "save_steps": 2, "logging_steps": 1} | train
    return replace(tiny_root(tmp_path, **settings), model=HFModelConfig(name=str(folder)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_checkpoint_has_the_precision_of_its_base(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    done = run.train(from_base(made, tmp_path, dtype))
    path = done / "checkpoints" / "step-4"
    assert {str(value.dtype) for value in load_file(path / "model.safetensors").values()} == {
        f"torch.{dtype}"
    }
    loaded = ssd_infer.load(path)
    assert next(loaded.model.parameters()).dtype == getattr(torch, dtype)
    assert "lm_head.weight" not in load_file(path / "model.safetensors"), "a tied head is saved once"
    assert loaded.model.lm_head.weight.data_ptr() == loaded.model.model.embed_tokens.weight.data_ptr()  # type: ignore[union-attr]
    record = json.loads((path / "ssd.json").read_text())
    assert record["precision"] == {"trained": "float32", "saved": dtype, "computed": "float32"}
    assert f"trained in float32, saved in {dtype} as the base" in capsys.readouterr().out
    assert (path / precision.FILE).exists() == (dtype != "float32")


def test_a_run_saved_in_bfloat16_resumes_as_if_nothing_had_been_rounded(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.train(from_base(made, tmp_path, "bfloat16"))
    cfg = replace(tiny_root(tmp_path, max_steps=4, save_steps=2, logging_steps=1), run_name="parts")
    cfg.model = HFModelConfig(name=str(tmp_path / "base"))
    annotate = checkpoints.CheckpointStore.annotate

    def interrupted(self: checkpoints.CheckpointStore, step: int, values: dict[str, Any]) -> None:
        annotate(self, step, values)
        if step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.CheckpointStore, "annotate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.train(cfg)
    monkeypatch.undo()
    done = run.train(cfg)
    for name in ("model.safetensors", precision.FILE):
        left, right = (load_file(path / "checkpoints" / "step-4" / name) for path in (whole, done))
        for key, value in left.items():
            assert torch.equal(value, right[key]), key
    kept = load_file(done / "checkpoints" / "step-4" / precision.FILE)
    saved = load_file(done / "checkpoints" / "step-4" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(kept[name].bfloat16(), saved[name])
    assert not torch.equal(kept[name], saved[name].float()), "nothing was rounded, so nothing was tested"


@pytest.mark.parametrize(("asked", "dtype"), [("float32", "float32"), ("float16", "float16")])
def test_the_precision_can_be_chosen(made: Path, tmp_path: Path, asked: str, dtype: str) -> None:
    done = run.train(from_base(made, tmp_path, "bfloat16", save_dtype=asked, max_steps=1))
    assert next(ssd_infer.load(done / "checkpoints" / "step-1").model.parameters()).dtype == getattr(
        torch, dtype
    )


def test_experts_are_rounded_too(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path, plain=True, max_steps=1, save_dtype="bfloat16")
    cfg.model = ScratchMoeConfig(
        num_layers=2, hidden_size=32, intermediate_size=16, num_heads=4, num_kv_heads=2, max_length=64,
        vocab_size=300, num_experts=4, experts_per_token=2,
    )  # fmt: skip
    path = run.train(cfg) / "checkpoints" / "step-1"
    model = AutoModelForCausalLM.from_pretrained(path)
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    stored = load_file(path / precision.FILE)
    assert all(torch.equal(value, stored[name].bfloat16()) for name, value in model.named_parameters())


def test_a_base_whose_config_says_nothing_is_looked_at(made: Path, tmp_path: Path) -> None:
    cfg = from_base(made, tmp_path, "bfloat16")
    file = tmp_path / "base" / "config.json"
    file.write_text(
        json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "dtype"})
    )
    assert precision.saved_dtype(cfg) == "bfloat16"


def test_a_weight_average_is_not_rounded() -> None:
    wanted = ["+recipe=diffusion", "recipe.ema=0.99"]
    assert precision.saved_dtype(load_config(wanted)) == "float32"
    with pytest.raises(ConfigError, match=r"train\.save_dtype: cannot round the weight average"):
        load_config([*wanted, "train.save_dtype=bfloat16"])


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_every_engine_saves_in_the_precision_of_the_base(made: Path, tmp_path: Path, engine: str) -> None:
    cfg = replace(
        from_base(made, tmp_path, "bfloat16", max_steps=2, save_steps=1), engine=EngineConfig(name=engine)
    )
    assert train_ranks(cfg) == [0, 0], error_file(cfg, 0).read_text()
    path = cfg.run_dir / "checkpoints" / "step-2"
    assert {value.dtype for value in load_file(path / "model.safetensors").values()} == {torch.bfloat16}
    assert (path / precision.FILE).exists() == (engine == "ddp")


@pytest.mark.integration
def test_a_save_that_must_fail_ends_all_processes_before_a_step(made: Path, tmp_path: Path) -> None:
    cfg = replace(from_base(made, tmp_path, "bfloat16", max_steps=2), engine=EngineConfig(name="fsdp2"))
    (cfg.run_dir / "best.json").mkdir(parents=True)
    assert train_ranks(cfg) == [2, 2], error_file(cfg, 0).read_text()
    assert "best.json is a directory" in error_file(cfg, 0).read_text()
    assert "the first process of the job could not start" in error_file(cfg, 1).read_text()
    assert not (cfg.run_dir / "metrics.jsonl").exists()


def test_a_denoiser_made_of_a_bfloat16_model_keeps_its_precision(made: Path, tmp_path: Path) -> None:
    base = from_base(made, tmp_path, "bfloat16")
    cfg = replace(diffusion_root(tmp_path, OBJECTIVES["complementary_block"], max_steps=1), model=base.model)
    path = run.train(cfg) / "checkpoints" / "step-1"
    loaded = ssd_infer.load(path)
    assert loaded.kind == "diffusion"
    assert {value.dtype for value in loaded.model.parameters()} == {torch.bfloat16}
    stored = load_file(path / precision.FILE)
    assert all(torch.equal(value, stored[name].bfloat16()) for name, value in loaded.model.named_parameters())
