"""Whole runs beside a frozen target: files, resuming, stopping early, several processes, refusals."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ssd_infer.errors import ConfigError
from ssd_infer.models.draft_modules.files import load_draft
from ssd_train import run
from ssd_train.config.schema import EngineConfig, Root
from ssd_train.recipes.frozen_target.recipe import FrozenTargetRecipe
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig
from ssd_train.trainer.early_stop import best_of, is_over
from tests.train.frozen_support import frozen_root
from tests.train.ranks import Fault, assert_close, curve, error_file, train_ranks
from tests.train.support import with_train

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed"
)
ENGINES = ["ddp", "fsdp2", *(pytest.param(f"deepspeed_zero{n}", marks=needs_deepspeed) for n in (1, 2))]
TRAINING = "ssd_draft_training.safetensors"


def digest(cfg: Root) -> dict[str, str]:
    """Return the SHA-256 of every file of the base model."""
    folder = Path(cfg.model.name)  # type: ignore[attr-defined]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted run of eight steps."""
    return run.train(frozen_root(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("form", ["exit", "mtp", "heads"])
def test_a_run_learns_and_leaves_its_base_as_it_was(tmp_path: Path, form: str) -> None:
    cfg = frozen_root(tmp_path, recipe={"form": form}, max_steps=24, save_steps=24, eval_steps=6)
    before = digest(cfg)
    run_dir = run.train(cfg)
    assert digest(cfg) == before
    names = {path.name for path in (run_dir / "checkpoints" / "step-24").iterdir()}
    assert {"ssd_draft.safetensors", "ssd_draft.json", TRAINING, "optimizer.pt", "ssd.json"} <= names
    assert not {name for name in names if name.startswith(("model", "config.json", "tokenizer"))}
    evaluated = [line for line in curve(run_dir) if "eval_loss" in line]
    # Heads know nothing of the tokens between, which is most of what this target goes by.
    share = 0.98 if form == "heads" else 0.9
    assert evaluated[-1]["eval_loss"] < share * evaluated[0]["eval_loss"]
    # The target is what it was, so that its own loss on the same text does not move.
    assert len({round(line["eval_target_loss"], 6) for line in evaluated}) == 1
    assert {"eval_tau_sim", "loss"} <= set().union(*curve(run_dir))


def test_a_checkpoint_holds_the_exit_that_was_judged_best(whole: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(whole.parents[2] / "base")
    folder = whole / "checkpoints" / "step-8"
    module = load_draft(folder, model)
    last = curve(whole)[-1]
    kept = max((1, 2), key=lambda layer: last[f"eval_exit_{layer}_speedup"])
    assert module.spec.exit_layer == kept
    trained = load_file(folder / TRAINING)
    for name, value in module.state_dict().items():
        assert torch.equal(value, trained[f"drafts.exit_{kept}.{name}"]), name
    assert json.loads((folder / "ssd.json").read_text())["tau_sim"] == last[f"eval_exit_{kept}_tau"]


def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole: Path, tmp_path: Path) -> None:
    cfg = frozen_root(tmp_path)
    assert train_ranks(cfg, world=1, fault=Fault(signal.SIGKILL, step=4)) == [-signal.SIGKILL]
    assert [path.name for path in (cfg.run_dir / "checkpoints").iterdir()] == ["step-3"]
    run.train(cfg)
    assert curve(cfg.run_dir) == curve(whole)
    ours, theirs = (load_file(where / "checkpoints" / "step-8" / TRAINING) for where in (cfg.run_dir, whole))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_another_base_is_refused_on_resume(tmp_path: Path) -> None:
    cfg = frozen_root(tmp_path, max_steps=3)
    run.train(cfg)
    file = Path(cfg.model.name) / "model.safetensors"  # type: ignore[attr-defined]
    weights = load_file(file)
    save_file({name: value + 1e-3 for name, value in weights.items()}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.name: holds other content"):
        run.train(with_train(cfg, max_steps=6))


def test_accumulation_is_exact(whole: Path, tmp_path: Path) -> None:
    run.train(frozen_root(tmp_path, batch_size=2, grad_accum=2, eval_batches=4))
    assert_close(curve(tmp_path / "outputs" / "frozen_target" / "default"), curve(whole), 1e-4)


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["exit", "mtp"])
def test_two_processes_learn_what_one_learns_also_across_a_stop(
    tmp_path: Path, engine: str, form: str
) -> None:
    settings = {"max_steps": 5, "save_steps": 4, "eval_steps": 0, "logging_steps": 2}
    one = frozen_root(tmp_path / "one", recipe={"form": form}, batch_size=4, eval_batches=2, **settings)
    alone = run.train(one)
    two = frozen_root(tmp_path / "two", recipe={"form": form}, batch_size=2, eval_batches=2, **settings)
    cfg = replace(two, engine=EngineConfig(name=engine))
    assert train_ranks(cfg, fault=Fault(signal.SIGTERM, step=2, rank=1)) == [0, 0], error_file(
        cfg, 0
    ).read_text()
    assert train_ranks(cfg) == [0, 0], error_file(cfg, 0).read_text()
    ours, theirs = ([line for line in curve(one) if "loss" in line] for one in (cfg.run_dir, alone))
    assert_close(ours, theirs, 1e-3)
    name = "ssd_draft.safetensors"
    found, expected = (load_file(one / "checkpoints" / "step-5" / name) for one in (cfg.run_dir, alone))
    assert set(found) == set(expected)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=2e-3, atol=3e-4)


def history(*speedups: float) -> list[dict[str, float]]:
    return [{"step": 2 * place, "eval_speedup": speedup} for place, speedup in enumerate(speedups, start=1)]


def test_patience_counts_validations_after_the_best_one() -> None:
    rising, flat = history(1.0, 1.2, 1.4), history(1.0, 1.4, 1.4, 1.3)
    assert not is_over(rising, 1)
    assert is_over(flat, 2)
    assert not is_over(flat, 3)
    assert not is_over(flat, 0)
    assert not is_over([], 1)
    assert best_of(flat) == (4, 1.4)


def test_a_choice_that_moves_to_a_shallower_exit_is_progress() -> None:
    recipe = FrozenTargetRecipe(FrozenTargetConfig(exits=[1, 8], patience=1))
    recipe.costs = {"exit_1": 0.1, "exit_8": 0.5}
    # Of rounds of one draft: the shallow exit learns and overtakes the deep one, which costs more.
    lengths = [(1.0, 1.9), (1.45, 1.9), (1.5, 1.9)]
    found = []
    for step, (shallow, deep) in enumerate(lengths, start=1):
        given = {"eval_exit_1_tau_1": shallow, "eval_exit_8_tau_1": deep}
        found.append({"step": step, **recipe.validated(given, "eval_")})
    assert recipe.kept == "exit_1"
    assert found[0]["eval_tau_sim"] > found[1]["eval_tau_sim"]
    assert [line["eval_speedup"] for line in found] == pytest.approx([1.9 / 1.53, 1.45 / 1.13, 1.5 / 1.13])
    assert not is_over(found[:2], 1)
    assert not is_over(found, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_run_will_cost_counts_the_target_on_every_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    cfg = frozen_root(tmp_path, recipe={"target_dtype": dtype}, max_steps=1, save_steps=1)
    model = AutoModelForCausalLM.from_pretrained(cfg.model.name)  # type: ignore[attr-defined]
    count = sum(weight.numel() for weight in model.parameters())
    run.train(cfg)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert lines["weights"] == (
        f"draft modules trained and saved in float32; the target frozen in {dtype}, not saved"
    )
    size = count * (4 if dtype == "float32" else 2) / 1024
    found = re.search(r"frozen beside them ([\d.]+) KiB", lines["memory"])
    assert found is not None
    assert float(found[1]) == pytest.approx(size, abs=0.2)
    total = re.match(r"about ([\d.]+) KiB a process", lines["memory"])
    parts = re.findall(r"(?:weights|gradients|optimizer|them) ([\d.]+) KiB", lines["memory"])
    assert total is not None
    assert float(total[1]) == pytest.approx(sum(map(float, parts)), abs=0.3)


def test_a_run_stops_early_saved_and_stays_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = FrozenTargetRecipe.validated

    def never_faster(self: FrozenTargetRecipe, metrics: dict[str, float], prefix: str) -> dict[str, float]:
        return {**judge(self, metrics, prefix), f"{prefix}speedup": 1.5}

    monkeypatch.setattr(FrozenTargetRecipe, "validated", never_faster)
    cfg = frozen_root(tmp_path, recipe={"patience": 2}, max_steps=20, save_steps=20, eval_steps=2)
    run.train(cfg)
    assert [path.name for path in (cfg.run_dir / "checkpoints").iterdir()] == ["step-6"]
    capsys.readouterr()
    run.train(cfg)
    assert "stopped early at step 6" in capsys.readouterr().out
    run.train(replace(cfg, recipe=replace(cfg.recipe, patience=3)))
    assert (cfg.run_dir / "checkpoints" / "step-8").exists()
