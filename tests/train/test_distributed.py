"""Two processes on the CPU learn what one process learns from the same samples."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ssd_train.config.schema import LayerSkipConfig, Root
from tests.train.support import in_processes, tiny_root


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_rank(cfg: Root, rank: int, port: int, facts: str) -> None:
    """Train as one of two ranks; write what this rank ended with."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    from ssd_train import run
    from ssd_train.trainer import SSDTrainer

    drawn: list[list[Any]] = []
    step = SSDTrainer.compute_loss

    def watched(self: SSDTrainer, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        kept = (
            self.recipe.kept(len(inputs["input_ids"]), self._context())
            if hasattr(self.recipe, "kept")
            else []
        )
        drawn.append([None if keep is None else keep.tolist() for keep in kept])
        return step(self, model, inputs, *args, **kwargs)

    save = SSDTrainer._save_checkpoint

    def remembered(self: SSDTrainer, model: Any, trial: Any = None) -> None:
        save(self, model, trial)
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        torch.save({"kept": drawn, "state": state}, f"{facts}-{rank}.pt")

    SSDTrainer.compute_loss = watched  # type: ignore[method-assign]
    SSDTrainer._save_checkpoint = remembered  # type: ignore[method-assign]
    run.train(cfg)


def without_dropout(cfg: Root) -> Root:
    assert isinstance(cfg.recipe, LayerSkipConfig)
    recipe = replace(cfg.recipe, layer_dropout=replace(cfg.recipe.layer_dropout, enabled=False))
    return replace(cfg, recipe=recipe)


def two_ranks(cfg: Root, tmp_path: Path) -> list[dict[str, Any]]:
    port, facts = free_port(), str(tmp_path / "facts")
    codes = in_processes(one_rank, (cfg, 0, port, facts), (cfg, 1, port, facts))
    assert codes == [0, 0]
    return [torch.load(f"{facts}-{rank}.pt") for rank in (0, 1)]


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.integration
def test_two_ranks_equal_one_process_with_twice_the_batch(tmp_path: Path) -> None:
    cfg = without_dropout(tiny_root(tmp_path, batch_size=2, max_steps=4, save_steps=4))
    cfg.data.validation_blocks = 4
    first, second = two_ranks(cfg, tmp_path)
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    from ssd_train import run

    single = run.train(replace(cfg, run_name="one", train=replace(cfg.train, batch_size=4)))
    for left, right in zip(lines(cfg.run_dir), lines(single), strict=True):
        assert set(left) == set(right)
        for name in ("loss", "final_loss", "grad_norm"):
            assert left[name] == pytest.approx(right[name], rel=1e-4), name
    for name in ("eval_loss", "eval_exit_2_agreement"):
        assert lines(cfg.run_dir)[-1][name] == pytest.approx(lines(single)[-1][name], rel=1e-3), name
    alone = load_file(single / "checkpoints" / "step-4" / "model.safetensors")
    for name, value in load_file(cfg.run_dir / "checkpoints" / "step-4" / "model.safetensors").items():
        torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)


@pytest.mark.integration
def test_layer_dropout_is_the_same_on_both_ranks_and_layers_without_survivors_do_not_hang(
    tmp_path: Path,
) -> None:
    cfg = tiny_root(tmp_path, batch_size=1, grad_accum=2, max_steps=6, save_steps=6)
    assert isinstance(cfg.recipe, LayerSkipConfig)
    dropout = replace(cfg.recipe.layer_dropout, p_max=0.9, time_scale="const", layer_scale="uniform")
    cfg = replace(cfg, recipe=replace(cfg.recipe, layer_dropout=dropout))
    first, second = two_ranks(cfg, tmp_path)
    assert first["kept"] == second["kept"]
    assert any([] in kept for kept in first["kept"])
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert [line["step"] for line in lines(cfg.run_dir)] == [2, 4, 6]
    assert sorted(path.name for path in cfg.run_dir.glob("checkpoints/step-6/rng_state*")) == [
        "rng_state_0.pth",
        "rng_state_1.pth",
    ]
