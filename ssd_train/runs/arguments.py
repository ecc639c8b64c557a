"""Translate a run's configuration into `transformers.TrainingArguments`; the one place that knows both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments, get_scheduler
from transformers.utils.import_utils import is_torch_bf16_gpu_available

from ssd_infer.engine.devices import device_problems, resolve_device
from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import Root, TrainConfig
from ssd_train.distributed.engine_arguments import engine_arguments


def on_device(cfg: Root) -> Root:
    """Return `cfg` with the device this machine has for it, so that nothing after this sees `auto`.

    Raises ConfigError when there is no such device, training cannot be told to take it, or it lacks `cfg.dtype`.
    """
    device = resolve_device(cfg.device)
    problems = device_problems(device) or list(_not_the_first(device))
    accelerated = device != "cpu" and (torch.cuda.is_available() or torch.backends.mps.is_available())
    if cfg.dtype == "float16" and not accelerated:
        remedy = "use dtype=float32 or dtype=bfloat16"
        problems.append(Problem("dtype", f"needs an accelerator beside device={device}", cfg.dtype, remedy))
    if cfg.dtype == "bfloat16" and accelerated and not is_torch_bf16_gpu_available():
        remedy = "use dtype=float16, or dtype=float32"
        problems.append(Problem("dtype", f"is nothing device={device} can compute in", cfg.dtype, remedy))
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(cfg, device=device)


def _not_the_first(device: str) -> Iterator[Problem]:
    """Yield the problem of a numbered device: each process takes the one its launcher, or the driver, gives it."""
    if device.partition(":")[2] not in ("", "0"):
        number = device.partition(":")[2]
        remedy = f"set the environment variable CUDA_VISIBLE_DEVICES={number} and device=cuda"
        yield Problem("device", "cannot be chosen by number in training", device, remedy)


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
        "lr_scheduler_kwargs": _schedule_settings(train.lr_scheduler, train.max_steps),
    }


def rate_share(train: TrainConfig, max_steps: int, step: int) -> float:
    """Return the learning rate after `step` steps of a run of `max_steps`, as a share of its peak."""
    warmup = train.warmup_steps
    schedule: Any = get_scheduler(
        train.lr_scheduler,
        torch.optim.SGD([torch.zeros(1)], lr=1.0),
        num_warmup_steps=math.ceil(max_steps * warmup) if warmup < 1 else int(warmup),
        num_training_steps=max_steps,
        scheduler_specific_kwargs=_schedule_settings(train.lr_scheduler, max_steps),
    )
    return float(schedule.lr_lambdas[0](step))


def _schedule_settings(name: str, max_steps: int) -> dict[str, Any]:
    """Return what a schedule must be told besides its length: warmup_stable_decay decays over the last fifth."""
    return {"num_decay_steps": math.ceil(max_steps / 5)} if name == "warmup_stable_decay" else {}


def _checkpointing(wanted: bool) -> dict[str, Any]:
    """Return the switch under the name this transformers has for it (`gradient_…` before 5.24)."""
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    prefix = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    return {prefix: True, f"{prefix}_kwargs": {"use_reentrant": False}} if wanted else {}
