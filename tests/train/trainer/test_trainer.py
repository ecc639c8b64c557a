"""The trainer's arithmetic: accumulation, metrics, refusal of broken steps, evaluation without a trace."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Trainer

from ssd_infer.errors import SSDError
from ssd_train.recipes.base import stack
from ssd_train.recipes.registry import build
from ssd_train.runs.arguments import training_arguments
from ssd_train.runs.checkpoints import CheckpointStore
from ssd_train.runs.metrics import MetricsFile
from ssd_train.trainer.trainer import CheckpointExtras, SSDTrainer
from tests.train.support import Samples, tiny_llama, tiny_root, tokens, with_train


def ragged(count: int, length: int = 12) -> Samples:
    """Return samples of unequal label counts, some much shorter than others."""
    samples = []
    for index, ids in enumerate(tokens(count, length)):
        mask = torch.ones_like(ids)
        mask[length - (index * 5) % (length - 3) :] = 0
        samples.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return Samples(samples)


def trainer_for(tmp_path: Path, data: Samples, *, plain: bool = False, **train: Any) -> SSDTrainer:
    """Return a trainer of a tiny model on `data`, its checkpoints and metrics below `tmp_path`."""
    cfg = with_train(tiny_root(tmp_path, plain=plain), **train)
    recipe, model = build(cfg.recipe), tiny_llama(dtype=torch.float64)
    recipe.prepare(model)
    return SSDTrainer(
        model=model,
        args=training_arguments(cfg, tmp_path / "run"),
        recipe=recipe,
        train_dataset=data,
        validation_dataset=Samples([{"input_ids": ids} for ids in tokens(6, seed=9)]),
        processor=None,
        collator=stack,
        store=CheckpointStore(tmp_path / "run", 0),
        metrics_file=MetricsFile(tmp_path / "run" / "metrics.jsonl"),
        extras=CheckpointExtras(),
        eval_samples=2 * cfg.train.batch_size,
    )


def rows(trainer: SSDTrainer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trainer.metrics_file.path.read_text().splitlines()]


@pytest.mark.parametrize("plain", [False, True])
def test_one_batch_of_eight_equals_four_of_two(tmp_path: Path, plain: bool) -> None:
    found = []
    for name, size, accumulation in (("whole", 8, 1), ("pieces", 2, 4)):
        (tmp_path / name).mkdir()
        trainer = trainer_for(
            tmp_path / name, ragged(16), plain=plain, batch_size=size, grad_accum=accumulation,
            max_steps=3, logging_steps=1, save_steps=100, max_grad_norm=0.0,
        )  # fmt: skip
        trainer.train()
        found.append((rows(trainer), [p.detach().clone() for p in trainer.model.parameters()]))
    (whole, weights), (pieces, other) = found
    assert [row["step"] for row in whole] == [row["step"] for row in pieces] == [1, 2, 3]
    for left, right in zip(whole, pieces, strict=True):
        for key in ("loss", "final_loss", "grad_norm"):
            assert left[key] == pytest.approx(right[key], rel=1e-8)
    # Adam divides by the square root of tiny numbers, so weights agree less tightly than losses.
    torch.testing.assert_close(weights, other, rtol=1e-4, atol=1e-6)


def test_loss_is_the_mean_over_the_tokens_of_the_window(tmp_path: Path) -> None:
    data = ragged(8)
    trainer = trainer_for(
        tmp_path, data, plain=True, batch_size=2, grad_accum=4, max_steps=1, logging_steps=1, save_steps=100
    )
    total = count = 0.0
    for sample in data.samples:
        batch = {name: value[None] for name, value in sample.items()}
        tokens_here = int((batch["labels"][:, 1:] != -100).sum())
        total += float(trainer.model(**batch).loss.detach()) * tokens_here
        count += tokens_here
    trainer.train()
    assert rows(trainer)[0]["loss"] == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("plain", [False, True])
def test_overfits_one_batch(tmp_path: Path, plain: bool) -> None:
    data = Samples([{"input_ids": ids} for ids in tokens(4, 8)])
    trainer = trainer_for(
        tmp_path, data, plain=plain, max_steps=60, logging_steps=60, save_steps=1000, learning_rate=1e-2
    )
    first = trainer.evaluate(data)["eval_loss"]
    trainer.train()
    assert first > 4
    assert trainer.evaluate(data)["eval_loss"] < 0.3


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_non_finite_step_is_refused_before_the_weights_move(tmp_path: Path, broken: str) -> None:
    trainer = trainer_for(tmp_path, ragged(16), max_steps=6, save_steps=2, logging_steps=1)
    before: dict[str, torch.Tensor] = {}
    whole_step = trainer.recipe.step

    def fatal(model: Any, inputs: Any, context: Any) -> Any:
        out = whole_step(model, inputs, context)
        if context.global_step == 3:
            before.update({name: value.clone() for name, value in model.state_dict().items()})
            if broken == "loss":
                out.loss_sum = out.loss_sum * float("nan")
            else:
                model.model.norm.weight.register_hook(lambda grad: grad * float("inf"))
        return out

    trainer.recipe.step = fatal  # type: ignore[method-assign]
    with pytest.raises(SSDError, match=r"recipe layerskip, step 4: the .* is (nan|inf)"):
        trainer.train()
    assert before
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert trainer.store.steps() == [2]
    assert trainer.store.latest() == trainer.store.path(2)


def test_evaluation_leaves_mode_gradients_and_random_numbers_alone(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, ragged(4))
    trainer.model.train()
    state = torch.random.get_rng_state()
    metrics = trainer.evaluate()
    assert trainer.model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert {"eval_loss", "eval_tau_sim", "eval_exit_1_agreement", "eval_exit_3_loss"} <= set(metrics)

    def fail(*_: Any) -> Any:
        torch.rand(3)
        raise RuntimeError("stop")

    trainer.recipe.evaluate = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="stop"):
        trainer.evaluate()
    assert trainer.model.training
    assert torch.equal(torch.random.get_rng_state(), state)


def test_evaluation_counts_each_chosen_sample_once(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, ragged(4), batch_size=4)
    batches = list(trainer.validation_batches(trainer.eval_dataset))
    seen = [row for batch, _, _ in batches for row in batch["input_ids"]]
    assert torch.equal(torch.stack(seen), tokens(6, seed=9))
    assert [(offset, counts) for _, offset, counts in batches] == [(0, True), (4, True)]


def test_prediction_step_is_the_validation_loss(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, ragged(4), batch_size=6)
    loss, _, _ = trainer.prediction_step(trainer.model, {"input_ids": tokens(6, seed=9)}, True)
    assert float(loss) == pytest.approx(trainer.evaluate()["eval_loss"])


def test_one_object_a_step_with_every_term(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, ragged(16), max_steps=5, save_steps=4, logging_steps=2)
    trainer.train()
    lines = rows(trainer)
    assert [line["step"] for line in lines] == [2, 4, 5]
    for line in lines:
        assert {"loss", "final_loss", "learning_rate", "grad_norm"} <= set(line)
    # Rotation with period 2 visits all exits within a logging window; validation joins the line of its step.
    assert {"exit_2_loss", "exit_2_forward", "exit_3_loss"} <= set(lines[0])
    assert "eval_loss" not in lines[0]
    assert {"eval_loss", "eval_tau_sim"} <= set(lines[1])


def test_a_tied_head_is_not_reported_missing_and_anything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, reported = trainer_for(tmp_path, ragged(4)), []
    monkeypatch.setattr(Trainer, "_issue_warnings_after_load", lambda _self, result: reported.append(result))
    tied = SimpleNamespace(missing_keys=["lm_head.weight"], unexpected_keys=[])
    trainer._issue_warnings_after_load(tied)
    assert reported == []
    lost = SimpleNamespace(missing_keys=["lm_head.weight", "model.norm.weight"], unexpected_keys=[])
    trainer._issue_warnings_after_load(lost)
    assert reported == [lost]
