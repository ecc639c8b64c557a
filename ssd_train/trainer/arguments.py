"""Translate a run's configuration into `transformers.TrainingArguments`; the one place that knows both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from ssd_infer.engine.devices import device_problems
from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import Root
from ssd_train.distributed.engine_arguments import engine_arguments


def check_device(cfg: Root) -> None:
    """Raise ConfigError when this machine lacks `cfg.device`, or that device cannot compute in `cfg.dtype`."""
    problems = device_problems(cfg.device)
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    if cfg.dtype == "float16" and (cfg.device == "cpu" or not accelerated):
        remedy = "use dtype=float32 or dtype=bfloat16"
        problems.append(Problem("dtype", "needs an accelerator", cfg.dtype, remedy))
    if problems:
        raise ConfigError(problems)


def training_arguments(cfg: Root, run_dir: Path, report_to: list[str] | None = None) -> TrainingArguments:
    """Return the arguments of `cfg`; build them before the model: ranks learn their place from them."""
    train = cfg.train
    arguments = TrainingArguments(
        output_dir=str(run_dir),
        run_name=f"{cfg.recipe_name}/{cfg.run_name}",
        seed=cfg.seed,
        data_seed=cfg.seed,
        use_cpu=cfg.device == "cpu",
        bf16=cfg.dtype == "bfloat16",
        fp16=cfg.dtype == "float16",
        max_steps=train.max_steps,
        per_device_train_batch_size=train.batch_size,
        per_device_eval_batch_size=train.batch_size,
        gradient_accumulation_steps=train.grad_accum,
        max_grad_norm=train.max_grad_norm,
        save_strategy="steps",
        save_steps=train.save_steps,
        logging_steps=train.logging_steps,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if train.eval_steps > 0 else "no",
        eval_steps=train.eval_steps if train.eval_steps > 0 else None,
        dataloader_num_workers=train.num_workers,
        dataloader_drop_last=True,
        dataloader_pin_memory=cfg.device != "cpu" and torch.cuda.is_available(),
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        report_to=report_to or "none",
        **engine_arguments(cfg),
        **_optimisation(cfg),
        **_checkpointing(train.activation_checkpointing),
    )
    # One process drives one device: DataParallel would hide the recipe's forward from its hooks.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _optimisation(cfg: Root) -> dict[str, Any]:
    train = cfg.train
    warmup = train.warmup_steps
    return {
        "optim": "adamw_torch" if cfg.optim.name == "muon" else cfg.optim.name,
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        "adam_beta1": train.adam_beta1,
        "adam_beta2": train.adam_beta2,
        "adam_epsilon": cfg.optim.epsilon,
        "lr_scheduler_type": train.lr_scheduler,
        "warmup_steps": warmup if warmup < 1 else int(warmup),
    }


def _checkpointing(wanted: bool) -> dict[str, Any]:
    """Return the switch under the name this transformers has for it (`gradient_…` before 5.24)."""
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    prefix = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    return {prefix: True, f"{prefix}_kwargs": {"use_reentrant": False}} if wanted else {}
