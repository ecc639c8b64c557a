"""Continue a checkpoint with another number of processes, or another engine, where its files allow that."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.engines import ELASTIC
from ssd_train.config.schema import TrainConfig

logger = logging.getLogger(__name__)

_COPIES = ("single", "ddp")
"""Engines whose optimizer state is one file, the same for any number of processes."""


def adapt(args: TrainingArguments, engine: str, record: Mapping[str, Any]) -> None:
    """Make `args` continue the checkpoint that `record` describes: each step still sees the same samples.

    Raises ConfigError where `engine` cannot read the checkpoint's optimizer state, or the batch cannot be kept.
    """
    wrote, wrote_on, now = record.get("engine", "single"), record.get("world_size", 1), args.world_size
    if _format(wrote) != _format(engine):
        rule = f"differs from the run's checkpoint, whose optimizer state {wrote} wrote"
        remedy = f"use engine={wrote}, or start another run from its weights: model=hf model.name=CHECKPOINT"
        raise ConfigError([Problem("engine", rule, engine, remedy)])
    if now != wrote_on and engine not in ELASTIC:
        rule = f"cannot continue on {now} processes what ran on {wrote_on}"
        raise ConfigError([Problem("engine", rule, engine, f"start {wrote_on} processes again")])
    one = args.per_device_train_batch_size * args.gradient_accumulation_steps
    # The checkpoint may itself be of a job that had adapted: then only the samples of a step tell how the run began.
    whole = record.get("step_samples", one * wrote_on)
    if whole != one * now:
        _keep_batch(args, whole)


def step_samples(args: TrainingArguments) -> int:
    """Return the samples of an optimizer step over all processes."""
    samples: int = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return samples


def validation_samples(train: TrainConfig, args: TrainingArguments) -> int:
    """Return the samples of a validation, those of the run's first start however many processes there are now."""
    return train.eval_batches * step_samples(args) // train.grad_accum


def _keep_batch(args: TrainingArguments, whole: int) -> None:
    """Give every step on `args.world_size` processes the `whole` samples it had when the run began."""
    now, size, accumulation = (
        args.world_size,
        args.per_device_train_batch_size,
        args.gradient_accumulation_steps,
    )
    then = whole // (size * accumulation)
    if whole % now:
        rule = f"is {whole} samples a step over all {then} processes, which {now} cannot share equally"
        raise ConfigError([Problem("train.batch_size", rule, size, f"start a number that divides {whole}")])
    share = whole // now
    new = max(part for part in range(1, min(size, share) + 1) if share % part == 0)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = new, share // new
    args.per_device_eval_batch_size = max(1, args.per_device_eval_batch_size * then // now)
    logger.warning(
        "the run began on %d processes and is now on %d: each takes %d batches of %d a step, so that a step still sees "
        "%d samples",
        *(then, now, share // new, new, whole),
    )


def _format(engine: str) -> str:
    return "copies" if engine in _COPIES else engine
