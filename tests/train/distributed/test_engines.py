"""Every engine on two processes learns what one process learns, stops when told, resumes, and leaves whole weights."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ssd_train import run
from ssd_train.config.schema import EngineConfig, Root
from ssd_train.distributed import elastic
from ssd_train.recipes.asr_ctc.settings import ASRCTCConfig, ReadinessConfig, SpecAugmentConfig
from ssd_train.recipes.base import StepContext
from ssd_train.recipes.layerskip.recipe import LayerSkipRecipe
from ssd_train.recipes.layerskip.settings import LayerSkipConfig
from ssd_train.recipes.registry import build
from tests.train.diffusion_support import OBJECTIVES, diffusion_root
from tests.train.ranks import Fault, assert_close, curve, error_file, train_ranks
from tests.train.recipes.moe.test_moe import moe_root
from tests.train.speech_support import speech_root
from tests.train.support import tiny_llama, tiny_root, with_train

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed"
)
ENGINES = [
    "ddp",
    "fsdp2",
    *(pytest.param(f"deepspeed_zero{stage}", marks=needs_deepspeed) for stage in (1, 2, 3)),
]
STEPS, SAVED = 5, 4


def small(directory: Path, **train: object) -> Root:
    """Return a run with strong layer dropout and rotating exits on two layers of width 32."""
    settings = {
        "max_steps": STEPS,
        "save_steps": SAVED,
        "batch_size": 1,
        "grad_accum": 2,
        "eval_batches": 4,
        **train,
    }
    cfg = tiny_root(directory, **settings)
    cfg.data.validation_blocks = 7  # an odd number: the ranks get unequal shares
    assert isinstance(cfg.recipe, LayerSkipConfig)
    dropout = replace(cfg.recipe.layer_dropout, p_max=0.7, time_scale="const", layer_scale="uniform")
    model = replace(cfg.model, num_layers=3)
    return replace(cfg, model=model, recipe=replace(cfg.recipe, layer_dropout=dropout))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of one process that sees the whole batch at once."""
    directory = tmp_path_factory.mktemp("alone")
    return run.train(small(directory, batch_size=4, grad_accum=1))


def test_the_dropout_of_these_runs_leaves_layers_without_a_sample_on_one_rank_only(tmp_path: Path) -> None:
    recipe = build(small(tmp_path).recipe)
    assert isinstance(recipe, LayerSkipRecipe)
    recipe.prepare(tiny_llama(3))
    contexts = [
        StepContext(step, STEPS, seed=0, sample_offset=place) for step in range(STEPS) for place in (0, 1)
    ]
    kept = [[keep is None for keep in recipe.kept(1, context)] for context in contexts]
    assert any(first != second for first, second in zip(kept[::2], kept[1::2], strict=True))


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_learn_what_one_learns_also_across_a_stop(
    alone: Path, tmp_path: Path, engine: str
) -> None:
    cfg = replace(small(tmp_path), engine=EngineConfig(name=engine))
    assert train_ranks(cfg, fault=Fault(signal.SIGTERM, step=2, rank=1)) == [0, 0]
    assert json.loads((cfg.run_dir / "stopped.json").read_text())["step"] == 3
    assert sorted(path.name for path in (cfg.run_dir / "checkpoints").iterdir()) == ["step-3"]
    assert train_ranks(cfg) == [0, 0], error_file(cfg, 0).read_text()
    assert not (cfg.run_dir / "stopped.json").exists()
    # Step 3 has a line of its own, the validation of the checkpoint that the stop left.
    ours = [line for line in curve(cfg.run_dir) if "loss" in line]
    assert_close(ours, [line for line in curve(alone) if "loss" in line], 1e-4)
    check_weights(cfg.run_dir / "checkpoints" / f"step-{STEPS}", alone / "checkpoints" / f"step-{STEPS}")


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the diffusion run of one process that sees the whole batch at once."""
    return run.train(diffusion(tmp_path_factory.mktemp("denoiser"), batch_size=4, grad_accum=1))


def diffusion(directory: Path, **train: object) -> Root:
    """Return a diffusion run that also trains on the blocks the model decodes itself."""
    settings = {
        "max_steps": 3,
        "save_steps": 3,
        "batch_size": 1,
        "grad_accum": 2,
        "logging_steps": 1,
        **train,
    }
    return diffusion_root(directory, OBJECTIVES["drafts"], eval_batches=4, **settings)


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
def test_diffusion_on_two_processes_learns_what_one_learns(
    denoiser: Path, tmp_path: Path, engine: str
) -> None:
    cfg = replace(diffusion(tmp_path), engine=EngineConfig(name=engine))
    assert train_ranks(cfg) == [0, 0], error_file(cfg, 0).read_text()
    assert_close(curve(cfg.run_dir), curve(denoiser), 1e-4)


def speech(directory: Path, **train: object) -> Root:
    """Return a speech run with masked features and corrupted prefixes; its model has no dropout."""
    recipe = ASRCTCConfig(
        spec_augment=SpecAugmentConfig(time_share=0.2),
        readiness=ReadinessConfig(corrupt_prefix=0.5, corrupt_rate=0.2),
    )
    directory.mkdir(exist_ok=True)
    return speech_root(directory, recipe=recipe, **train)


def mixture(directory: Path, **train: object) -> Root:
    """Return a mixture of experts with drafts, and a balance loss that matters."""
    directory.mkdir(exist_ok=True)
    return with_train(moe_root(directory, balance_weight=0.5), **train)


@pytest.mark.integration
@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[1], ENGINES[-1]])
@pytest.mark.parametrize("recipe", [speech, mixture])
def test_speech_and_experts_on_two_processes_learn_what_one_learns(
    tmp_path: Path, recipe: Callable[..., Root], engine: str
) -> None:
    settings = {"max_steps": 3, "save_steps": 3, "grad_accum": 2, "logging_steps": 1, "eval_batches": 2}
    whole = run.train(recipe(tmp_path / "alone", batch_size=2, **settings))
    cfg = replace(recipe(tmp_path / "two", batch_size=1, **settings), engine=EngineConfig(name=engine))
    assert train_ranks(cfg) == [0, 0], error_file(cfg, 0).read_text()
    # A validation batch's highest load is that of the batch, and a process has smaller ones.
    ours, theirs = (
        [
            {name: value for name, value in line.items() if not name.startswith("eval_router")}
            for line in found
        ]
        for found in (curve(cfg.run_dir), curve(whole))
    )
    assert_close(ours, theirs, 2e-4)


def check_weights(ours: Path, theirs: Path) -> None:
    """Check that both directories load as transformers models with close weights and the same files of weights."""
    model, info = AutoModelForCausalLM.from_pretrained(ours, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    expected = load_file(theirs / "model.safetensors")
    found = load_file(ours / "model.safetensors")
    assert set(found) == set(expected)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=2e-3, atol=3e-4)


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["fsdp2", pytest.param("deepspeed_zero3", marks=needs_deepspeed)])
def test_bfloat16_and_recomputed_activations(alone: Path, tmp_path: Path, engine: str) -> None:
    cfg = small(tmp_path, activation_checkpointing=True)
    cfg = replace(cfg, dtype="bfloat16", engine=EngineConfig(name=engine))
    assert train_ranks(cfg) == [0, 0], error_file(cfg, 0).read_text()
    ours, theirs = curve(cfg.run_dir), curve(alone)
    assert [line["loss"] for line in ours if "loss" in line] == pytest.approx(
        [line["loss"] for line in theirs if "loss" in line], rel=0.03
    )


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_run_goes_on_with_another_number_of_processes(alone: Path, tmp_path: Path, engine: str) -> None:
    cfg = replace(small(tmp_path), engine=EngineConfig(name=engine))
    assert train_ranks(cfg, fault=Fault(signal.SIGUSR1, step=1)) == [0, 0]
    # Stopped again: the next start finds a checkpoint that one process wrote, and still what two began.
    assert train_ranks(cfg, world=1, fault=Fault(signal.SIGUSR1, step=2)) == [0], error_file(
        cfg, 0
    ).read_text()
    assert train_ranks(cfg, world=1) == [0], error_file(cfg, 0).read_text()
    assert "the run began on 2 processes and is now on 1" in error_file(cfg, 0).read_text()
    assert_close(curve(cfg.run_dir)[-1:], curve(alone)[-1:], 2e-3)


@pytest.mark.parametrize(
    ("now", "record", "batch", "accumulation"),
    [
        (2, {"world_size": 2, "step_samples": 16}, 4, 2),
        (1, {"world_size": 2, "step_samples": 16}, 4, 4),
        (1, {"world_size": 1, "step_samples": 16}, 4, 4),
        (2, {"world_size": 1, "step_samples": 16}, 4, 2),
        (8, {"world_size": 1, "step_samples": 16}, 2, 1),
        (1, {"world_size": 2}, 4, 4),
    ],
)
def test_a_step_keeps_its_samples_whatever_processes_the_checkpoint_saw(
    tmp_path: Path, now: int, record: dict[str, int], batch: int, accumulation: int
) -> None:
    train = replace(small(tmp_path).train, batch_size=4, grad_accum=2, eval_batches=3)
    args = SimpleNamespace(
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        world_size=now,
    )
    elastic.adapt(args, "ddp", {"engine": "ddp", **record})  # type: ignore[arg-type]
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (batch, accumulation)
    assert elastic.step_samples(args) == 16  # type: ignore[arg-type]
    assert elastic.validation_samples(train, args) == 3 * 4 * 2  # type: ignore[arg-type]


@pytest.mark.integration
def test_another_engine_or_too_few_processes_are_refused(tmp_path: Path) -> None:
    cfg = replace(small(tmp_path), engine=EngineConfig(name="ddp"))
    assert train_ranks(cfg, fault=Fault(signal.SIGTERM, step=1)) == [0, 0]
    other = replace(cfg, engine=EngineConfig(name="fsdp2"))
    assert train_ranks(other, world=1) == [2]
    assert (
        "engine: differs from the run's checkpoint, whose optimizer state ddp wrote"
        in error_file(cfg, 0).read_text()
    )
    assert train_ranks(with_train(cfg), world=3) == [2, 2, 2]
    assert "which 3 cannot share equally" in error_file(cfg, 0).read_text()


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["ddp", "fsdp2", pytest.param("deepspeed_zero3", marks=needs_deepspeed)])
def test_a_killed_process_ends_the_job_with_a_clear_error(tmp_path: Path, engine: str) -> None:
    cfg = replace(small(tmp_path), engine=EngineConfig(name=engine, timeout_minutes=0.5))
    codes = train_ranks(cfg, fault=Fault(signal.SIGKILL, step=2, rank=1))
    assert codes == [2, -signal.SIGKILL]
    assert "another process of this job ended or stopped answering" in error_file(cfg, 0).read_text()
